"""Weights of the step that maximises the smallest alignment with a domain, from the inner products of the updates.

`gramian` computes the inner products of K updates (gradients or trajectories), `solve` returns the weights of the step
with a certificate of optimality, and `alignment`, `length` and others evaluate a step. The package needs only torch and
knows nothing about networks. `solution.py` and `problem.py` contain the mathematics; `active_set.py`,
`face_enumeration.py` and `interior.py` are solvers that only `solve` calls.

>>> import torch
>>> H = torch.tensor([[1.0, 0.0], [-0.5, 0.5]])  # one update per row
>>> weights = invariant_weights(gramian(H), radius=0.5)
>>> weights @ H.double()
tensor([0.1250, 0.3750], dtype=torch.float64)
"""

from typing import NoReturn

from pogm.pareto.gramian import gramian as gramian
from pogm.pareto.measures import agreement as agreement
from pogm.pareto.measures import alignment as alignment
from pogm.pareto.measures import alignment_from_cosine as alignment_from_cosine
from pogm.pareto.measures import alignment_variance as alignment_variance
from pogm.pareto.measures import cosines as cosines
from pogm.pareto.measures import inner_product_sum as inner_product_sum
from pogm.pareto.measures import length as length
from pogm.pareto.measures import relative_alignment_variance as relative_alignment_variance
from pogm.pareto.official import official_weights as official_weights
from pogm.pareto.solution import Solution as Solution
from pogm.pareto.solution import gap as gap
from pogm.pareto.solution import invariant_weights as invariant_weights
from pogm.pareto.solution import mixture as mixture
from pogm.pareto.solution import solve as solve


def __getattr__(name: str) -> NoReturn:
    """Raise an error for a missing name, with the present name of `angles`."""
    hint = ". It was renamed: use cosines" if name == "angles" else ""
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}{hint}")
