"""RSC: representation self-challenging."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor
from torch.func import grad

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Uniform, hyper
from pogm.core.losses import probabilities
from pogm.core.model import Model, over_samples
from pogm.core.optimizers import Scalar
from pogm.core.problem import Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params

SLACK = 1e-4  # tolerance of a rank, so that rounding does not change it


@dataclass(frozen=True)
class RSC(Algorithm):
    r"""Representation self-challenging (Huang et al., 2020): mask the features with the largest gradients.

    .. math:: \ell(g(z \odot (m^f \vee m^b)), y), \qquad m^f_j = 1[a_j < P_{1-f}(a_j)], \quad
        m^b_j = 1[\Delta_j < P_{1-b}(\Delta)]

    over all K·B samples j: :math:`a_j` is the gradient of the logit of the true class with respect to the features, P a
    percentile, and :math:`\Delta_j` the decrease of the probability of the true class caused by the mask :math:`m^f`.
    The mask is applied to the samples with the largest decrease. If labels are probabilities, they weight the classes.
    As in DomainBed, values equal to their percentile are masked: with f = 0 one feature, with b = 0 one sample, and
    more if there are ties. With a linear head, :math:`m^f` depends only on the label, so the network can read the label
    from the mask, and the training loss says little about predictions without masks.

    Args:
        feature_drop: Fraction f of the features to mask.
        sample_drop: Fraction b of the samples to mask.
    """

    needs_classes: ClassVar[bool] = True  # masks depend on the probability of the true class

    feature_drop: float = hyper(1 / 3, Uniform(0, 0.5), least=0, most=1, draw_as="rsc_f_drop_factor")  # f
    sample_drop: float = hyper(1 / 3, Uniform(0, 0.5), least=0, most=1, draw_as="rsc_b_drop_factor")  # b

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return the usual state, or raise a `UsageError` if the network has no head."""
        if not any(name.startswith("head.") for name in params | buffers):
            raise UsageError(
                "Expected a network with a head, because RSC masks its inputs; found none. "
                "Name the last layer, for example Learner(module, RSC(), head='fc')."
            )
        return super().start(params, buffers, key, problem)

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the mean risk with masked features."""
        z = over_samples(model.features, batch.x)  # [K, B, n]
        with torch.no_grad():
            mask = self.mask(model, z.flatten(0, 1).detach(), batch.y.flatten(0, 1))
        logits = over_samples(model.head, z * mask.view_as(z))
        risk = model.add_penalties(model.loss(logits, batch.y).mean(1), batch).mean()
        return Loss(risk, {"muted": 1 - mask.to(z.dtype).mean()})

    def mask(self, model: Model, z: Tensor, y: Tensor) -> Tensor:
        """Return m^f ∨ m^b, True for features that are not masked: [K · B, n]."""
        classes = probabilities(y, model.head(z).shape[-1])
        importance = grad(lambda z: (classes * model.head(z)).sum())(z)  # a
        by_feature = is_below_percentile(importance, 1 - self.feature_drop)  # m^f
        before, after = [(classes * model.head(features).softmax(-1)).sum(-1) for features in (z, z * by_feature)]
        by_sample = is_below_percentile(before - after, 1 - self.sample_drop)  # m^b
        return by_feature | by_sample[:, None]


def is_below_percentile(values: Tensor, fraction: Scalar) -> Tensor:
    """Return which values are below the percentile of their row (last axis).

    A percentile lies between two values that follow each other in sorted order. A value is below it exactly if it is
    below the upper of the two, so no interpolation is needed.
    """
    rank = values.new_ones(()) * fraction * (values.shape[-1] - 1)
    upper = (rank - SLACK).ceil().clamp(min=0).long()
    ordered = values.sort(-1).values
    return values < ordered.index_select(-1, upper.reshape(1))
