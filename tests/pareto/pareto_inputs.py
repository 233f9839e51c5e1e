"""Updates for tests, of kinds that are difficult for solvers."""

import torch
from hypothesis import strategies as st
from torch import Tensor

from pogm.pareto.weightings import (
    aligned_mtl_weights,
    cagrad_weights,
    config_weights,
    imtlg_weights,
    mgda_weights,
    nash_mtl_weights,
    pcgrad_weights,
    upgrad_weights,
)

RADII = (0.05, 0.5, 0.5**0.5, 0.9)
SCALES = tuple(10.0**k for k in (-12, -6, 0, 6, 12))

EXAMPLES = {  # §1.5: updates, r, mixture (None where not unique), worst alignment, step
    "orthogonal": ([[1, 0], [0, 1]], 0.5, [0.5, 0.5], 0.75, [0.75, 0.75]),
    "unequal lengths": ([[2, 0], [0, 1]], 0.5, [0, 1], 1.059017, [1, 1.059017]),
    "conflict": ([[1, 0], [-0.5, 0.5]], 0.5, [0, 1], 0.125, [0.125, 0.375]),
    "conflict, larger ball": (
        [[1, 0], [-0.5, 0.5]],
        0.5**0.5,
        [0.236701, 0.763299],
        0.161237,
        [0.161237, 0.483712],
    ),
    "duplicates": ([[1, 0, 0], [1, 0, 0], [0, 1, 0]], 0.5, None, 0.704124, [0.704124, 0.704124, 0]),
    "three": (
        [[1, 2, 0], [0, 1, -1], [2, -1, 1]],
        0.5,
        [0, 0.746349, 0.253651],
        1.353700,
        [1.353700, 1.010183, -0.343517],
    ),
    "three, larger ball": (
        [[1, 2, 0], [0, 1, -1], [2, -1, 1]],
        0.5**0.5,
        [0, 0.721466, 0.278534],
        1.564751,
        None,
    ),
    "beyond repair": (
        [[1, 0.2, 0], [-0.8, 0.1, 0], [0.3, 0.1, 0.5]],
        0.5,
        [0, 1, 0],
        -0.010837,
        [0.032312, 0.150128, 0.166667],
    ),
    "just repaired": (
        [[1, 0.2, 0], [-0.8, 0.1, 0], [0.3, 0.1, 0.5]],
        0.5**0.5,
        [0.266978, 0.733022, 0],
        0.029457,
        None,
    ),
}


def double(rows: list[list[float]]) -> Tensor:
    return torch.tensor(rows, dtype=torch.float64)


def gram(H: Tensor) -> Tensor:
    return H @ H.mT


def draw(kind: str, K: int, dimension: int, seed: int, count: int | None = None) -> Tensor:
    """Return K updates of a kind, [K, dimension], or [count, K, dimension]."""
    generator = torch.Generator().manual_seed(seed)

    def normal(*shape: int) -> Tensor:
        return torch.randn(count or 1, *shape, generator=generator, dtype=torch.float64)

    H = normal(K, dimension)
    if kind == "agreeing":
        H = H + 1
    elif kind == "flat":  # rank 2
        H = normal(K, 2) @ normal(2, dimension)
    elif kind == "near duplicates":
        H[:, 1::2] = H[:, :1] + 1e-7 * H[:, 1::2]
    elif kind == "duplicates":
        H[:, 1::2] = H[:, :1]
    elif kind == "near opposites":
        H[:, -1] = -H[:, 0] + 1e-2 * H[:, -1]
    elif kind == "unequal":
        H = H * 10 ** (-4 * torch.rand(H.shape[0], K, 1, generator=generator, dtype=torch.float64))
    return H if count else H[0]


KINDS = ("plain", "agreeing", "flat", "near duplicates", "duplicates", "near opposites", "unequal")


@st.composite
def updates(draw_from: st.DrawFn, largest: int = 6) -> Tensor:
    """Draw K updates of any kind, at any scale."""
    K = draw_from(st.integers(2, largest))
    kind = draw_from(st.sampled_from(KINDS))
    dimension = draw_from(st.integers(2, 2 * K))
    scale = draw_from(st.sampled_from(SCALES))
    return scale * draw(kind, K, dimension, draw_from(st.integers(0, 10_000)))


def relative(value: Tensor, G: Tensor) -> Tensor:
    return value / G.diagonal(dim1=-2, dim2=-1).mean(-1)


def rounding(G: Tensor, mixture: Tensor) -> Tensor:
    """Return the effect of the rounding of G on the relative gap; ‖h_π‖² has a relative precision of 1e-16 only."""
    G = G / G.diagonal(dim1=-2, dim2=-1).mean(-1)[..., None, None]
    square = torch.einsum("...i,...ij,...j->...", mixture, G, mixture)
    return 2e-16 / square.clamp(min=1e-12)


def orders(K, seed=0, count=None):
    """Draw the orders in which PCGrad meets the other updates, [K, K], or a batch of them."""
    generator = torch.Generator().manual_seed(seed)
    return torch.rand(*([count] if count else []), K, K, generator=generator).argsort(-1)


def every_weighting(G, radius, met):
    """Compute the weights of all weightings that have a closed form or a solver."""
    return (
        mgda_weights(G),
        cagrad_weights(G, radius),
        pcgrad_weights(G, met),
        upgrad_weights(G),
        config_weights(G),
        imtlg_weights(G),
        aligned_mtl_weights(G, "min"),
        aligned_mtl_weights(G, "rmse"),
        nash_mtl_weights(G)[0],
    )
