"""RSC: representation self-challenging."""

from dataclasses import dataclass

import torch
from torch import Tensor
from torch.func import grad

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Uniform, hyper
from pogm.core.model import Model, cross_entropy, over_samples, probabilities
from pogm.core.optimizers import Scalar
from pogm.core.problem import Problem
from pogm.core.state import Loss, State
from pogm.core.trees import Params

SLACK = 1e-4  # of a place in an order: rounding must not decide which one is meant


@dataclass(frozen=True)
class RSC(Algorithm):
    r"""Representation self-challenging (Huang et al., 2020): the features that matter most are muted.

    .. math:: \ell(g(z \odot (m^f \vee m^b)), y), \qquad m^f_j = 1[a_j < P_{1-f}(a_j)], \quad
        m^b_j = 1[\Delta_j < P_{1-b}(\Delta)]

    of all K·B samples j together: :math:`a_j` is the gradient of the true class's logit by the features, P a
    percentile, and :math:`\Delta_j` what the probability of the true class loses by the mute :math:`m^f`. So the mute
    is for the samples that it hurts most. Labels that are probabilities weigh the classes. As in DomainBed, what is at
    its percentile is muted: at f = 0 one feature, at b = 0 one sample, and more where there are ties.
    """

    feature_drop: float = hyper(1 / 3, Uniform(0, 0.5), least=0, most=1, draw_as="rsc_f_drop_factor")  # f
    sample_drop: float = hyper(1 / 3, Uniform(0, 0.5), least=0, most=1, draw_as="rsc_b_drop_factor")  # b

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """The usual state, if features and head are apart."""
        if not any(name.startswith("head.") for name in params | buffers):
            raise UsageError(
                "Expected a network with a head whose inputs RSC can mute; found one without. "
                "Name the last layer, for example Learner(module, RSC(), head='fc')."
            )
        return super().start(params, buffers, key, problem)

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """The mean risk of features of which some are muted."""
        z = over_samples(model.features, batch.x)  # [K, B, n]
        with torch.no_grad():
            kept = self.kept(model, z.flatten(0, 1).detach(), batch.y.flatten(0, 1))
        logits = over_samples(model.head, z * kept.view_as(z))
        risk = model.penalised(cross_entropy(logits, batch.y).mean(1), batch).mean()
        return Loss(risk, {"muted": 1 - kept.to(z.dtype).mean()})

    def kept(self, model: Model, z: Tensor, y: Tensor) -> Tensor:
        """Whether each feature of each sample is left as it is: [K · B, n]."""
        classes = probabilities(y, model.head(z).shape[-1])
        importance = grad(lambda z: (classes * model.head(z)).sum())(z)  # a
        by_feature = below_percentile(importance, 1 - self.feature_drop)
        hurt = [(classes * model.head(features).softmax(-1)).sum(-1) for features in (z, z * by_feature)]
        by_sample = below_percentile(hurt[0] - hurt[1], 1 - self.sample_drop)
        return by_feature | by_sample[:, None]


def below_percentile(values: Tensor, share: Scalar) -> Tensor:
    """Whether each value is below the percentile of its row, along the last axis.

    A percentile lies between two neighbours in the order, and below it are those below the upper one, wherever it lies
    in between: so nothing is interpolated.
    """
    place = values.new_ones(()) * share * (values.shape[-1] - 1)
    upper = (place - SLACK).ceil().clamp(min=0).long()
    ordered = values.sort(-1).values
    return values < ordered.index_select(-1, upper.reshape(1))
