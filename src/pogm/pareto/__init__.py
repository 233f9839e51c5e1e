"""The paper's mathematics, usable alone: inner products of K updates in, the weights of the step out.

>>> import torch
>>> H = torch.tensor([[1.0, 0.0], [-0.5, 0.5]])
>>> weights = invariant_weights(gramian(H), radius=0.5)
>>> weights @ H.double()
tensor([0.1250, 0.3750], dtype=torch.float64)
"""

from pogm.pareto.gramian import gramian as gramian
from pogm.pareto.measures import agreement as agreement
from pogm.pareto.measures import alignment as alignment
from pogm.pareto.measures import alignment_from_cosine as alignment_from_cosine
from pogm.pareto.measures import alignment_variance as alignment_variance
from pogm.pareto.measures import angles as angles
from pogm.pareto.measures import inner_product_sum as inner_product_sum
from pogm.pareto.measures import length as length
from pogm.pareto.measures import relative_alignment_variance as relative_alignment_variance
from pogm.pareto.mixture import gap as gap
from pogm.pareto.mixture import mixture as mixture
from pogm.pareto.official import official_weights as official_weights
from pogm.pareto.solution import Solution as Solution
from pogm.pareto.solution import solve as solve
from pogm.pareto.weights import invariant_weights as invariant_weights
