import pytest
import torch
from pareto_inputs import draw, gram
from torch.testing import assert_close

from pogm.pareto.face_enumeration import (
    invert_cholesky,
    invert_faces,
    invert_gauss_jordan,
    list_faces,
    project_on_faces,
)
from pogm.pareto.interior import project


@pytest.mark.parametrize("K", range(1, 9))
def test_every_face_is_listed_once(K):
    faces = list_faces(torch.eye(K).double())
    assert faces.shape == (2**K - 1, K)
    assert len(set(map(tuple, faces.tolist()))) == 2**K - 1
    assert faces.any(1).all()


def test_faces_are_inverted_separately():
    G = gram(draw("plain", 3, 5, seed=0))
    inverse = invert_faces(G, torch.tensor([[1.0, 0.0, 1.0]]).double())[0]
    corner = torch.tensor([0, 2])
    assert_close(inverse[corner][:, corner], torch.linalg.inv(G[corner][:, corner]))
    assert_close(inverse[1], torch.tensor([0.0, 1.0, 0.0]).double())


def test_both_inversions_agree():
    G = gram(draw("plain", 5, 9, seed=1, count=7))
    assert_close(invert_gauss_jordan(G), invert_cholesky(G))
    assert_close(invert_gauss_jordan(G) @ G, torch.eye(5).double().expand(7, 5, 5), atol=1e-10, rtol=0)


@pytest.mark.parametrize("kind", ["plain", "flat", "duplicates"])
def test_both_projections_agree(kind):
    H = draw(kind, 5, 6, seed=2, count=20)
    G, b = gram(H), H @ torch.tensor([1.0, 0, 0, 0, 0, 0]).double()
    listed, iterated = project_on_faces(G, b, list_faces(G)), project(G, b)
    assert_close(listed.unsqueeze(-2) @ G, iterated.unsqueeze(-2) @ G, atol=1e-7, rtol=0)
    assert (listed >= 0).all()
    assert (b + (listed.unsqueeze(-2) @ G).squeeze(-2)).min() >= -1e-9
