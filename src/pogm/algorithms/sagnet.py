"""Style-agnostic networks."""

from dataclasses import dataclass

from torch import Tensor, nn

from pogm.algorithms.base import Algorithm
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model, Network, cross_entropy, over_samples
from pogm.core.optimizer_groups import OptimizerGroup, OptimizerGroups, group_step
from pogm.core.optimizers import Adam, Optimizer, Scalar
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State

EPSILON = 1e-5


@dataclass(frozen=True)
class SagNet(Algorithm):
    r"""Style-agnostic networks (Nam et al., 2021): classes by content, whatever the style.

    The style of a sample is the mean and the variance of its features, its content what is left of them,
    :math:`n = (z - \mu) / \sqrt{\sigma^2 + \epsilon}`. With a random partner p(j) and :math:`\alpha_j \sim U(0, 1)`,

    .. math:: S(z)_j = n_j \sqrt{\sigma'^2_j + \epsilon} + \mu'_j, \quad
        \mu'_j = \alpha_j \mu_j + (1 - \alpha_j) \mu_{p(j)}, \text{ and } \sigma'^2 \text{ alike}; \qquad
        R(z)_j = \bar n_{p(j)} \sqrt{\sigma^2_j + \epsilon} + \mu_j,

    :math:`\bar n` without a gradient. A step has three moves, each with a pass and random numbers of its own: the
    featurizer and the content head on :math:`\ell(g(S(z)), y)`; the style head s on :math:`\ell(s(R(z)), y)`; the
    featurizer against it on :math:`-w \operatorname{mean} \log \operatorname{softmax} s(R(z))`. As in DomainBed the
    features are a vector per sample; the original has maps, in the middle of a ResNet. With ``nonlinear_classifier``
    the content head has several layers, in DomainBed both heads do.
    """

    adversary_weight: float = hyper(0.1, Power(10, -2, 1), least=0, draw_as="sag_w_adv")  # w

    def build(self, features: nn.Module, width: int, num_classes: int, num_domains: int) -> Network:
        """A style head beside the content head."""
        return Network(features, nn.Linear(width, num_classes), style=nn.Linear(width, num_classes))

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """Three Adams."""
        prefixes = {"features": "features.", "content": "head.", "style": "style."}
        return OptimizerGroups(
            **{who: OptimizerGroup((prefix,), Adam(lr, weight_decay)) for who, prefix in prefixes.items()}
        )

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Content, then style, then the featurizer against style."""
        (batch,) = batches
        keys = [self.random_key(state, move) for move in range(3)]

        def content(model: Model) -> Loss:
            z = over_samples(lambda x: with_other_style(model.features(x), keys[0]), batch.x)
            risks = cross_entropy(over_samples(model.head, z), batch.y).mean(1)
            return Loss(model.penalised(risks, batch).mean())

        def style_logits(model: Model, key: Tensor) -> Tensor:
            return over_samples(lambda x: model.part("style")(with_other_content(model.features(x), key)), batch.x)

        def style(model: Model) -> Loss:
            return Loss(cross_entropy(style_logits(model, keys[1]), batch.y).mean())

        def against_style(model: Model) -> Loss:
            return Loss(-self.adversary_weight * style_logits(model, keys[2]).log_softmax(-1).mean())

        moved, of_content = group_step(("features", "content"), content, state, problem, keys[0])
        moved, of_style = group_step(("style",), style, moved, problem, keys[1])
        moved, of_adversary = group_step(("features",), against_style, moved, problem, keys[2])
        metrics = {"loss": of_content.value, "style_loss": of_style.value, "adversary_loss": of_adversary.value}
        return moved._replace(step=state.step + 1), metrics


def with_other_style(z: Tensor, key: Tensor) -> Tensor:
    """Features [N, n] with the style of each drawn towards another's."""
    content, mean, variance = parted(z)
    share, partner = drawn(len(z), key)
    share = share.to(z.dtype)
    mean = share * mean + (1 - share) * mean.index_select(0, partner)
    variance = share * variance + (1 - share) * variance.index_select(0, partner)
    return content * (variance + EPSILON).sqrt() + mean


def with_other_content(z: Tensor, key: Tensor) -> Tensor:
    """Features [N, n] with the content of another, through which no gradient flows."""
    content, mean, variance = parted(z)
    _, partner = drawn(len(z), key)
    return content.detach().index_select(0, partner) * (variance + EPSILON).sqrt() + mean


def parted(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Content [N, n], and the mean and the variance [N, 1] that are the style."""
    mean, variance = z.mean(-1, keepdim=True), z.var(-1, keepdim=True)
    return (z - mean) / (variance + EPSILON).sqrt(), mean, variance


def drawn(count: int, key: Tensor) -> tuple[Tensor, Tensor]:
    """A share [N, 1] and a partner [N] for every sample."""
    return random.uniform(random.fold(key, 0), (count, 1)), random.permutation(random.fold(key, 1), count)
