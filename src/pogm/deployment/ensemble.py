"""A module that averages the outputs of several networks."""

import math
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pogm._system.errors import unknown_name_error

MEANS = ("logits", "probabilities")


class Ensemble(nn.Module):
    r"""Networks whose predictions are averaged, as `pogm ensemble` makes them.

    The outputs are the mean of the logits, :math:`\tfrac1M \sum_m f_m(x)` (Arpit et al., 2022), or the logarithm of the
    mean of the probabilities (Lakshminarayanan et al., 2017), whose softmax is that mean.

    Args:
        members: The networks.
        mean: What is averaged: "logits" (or the outputs of a regression) or "probabilities".
    """

    def __init__(self, members: Sequence[nn.Module], mean: str = "logits"):
        super().__init__()
        if mean not in MEANS:
            raise unknown_name_error("a mean of an ensemble", mean, MEANS)
        self.members = nn.ModuleList(members)
        self.mean = mean

    def forward(self, x: Tensor) -> Tensor:
        """Return the averaged outputs [N, C]."""
        outputs = torch.stack([member(x) for member in self.members])  # [M, N, C]
        if self.mean == "logits":
            return outputs.mean(0)
        return outputs.log_softmax(-1).logsumexp(0) - math.log(len(self.members))
