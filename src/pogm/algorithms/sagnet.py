"""SagNet: style-agnostic networks."""

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, nn

from pogm.algorithms.base import Algorithm
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Power, hyper
from pogm.core.model import Model, Network, over_samples
from pogm.core.optimizer_groups import OptimizerGroup, OptimizerGroups, group_step
from pogm.core.optimizers import Adam, Optimizer, Scalar
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State

EPSILON = 1e-5  # added to variances


@dataclass(frozen=True)
class SagNet(Algorithm):
    r"""Style-agnostic networks (Nam et al., 2021): predict from the content of features, not from their style.

    The style of a sample is the mean μ and the variance σ² of its features; its content is the normalised features
    :math:`n = (z - \mu) / \sqrt{\sigma^2 + \epsilon}`. With a random partner p(j) and :math:`\alpha_j \sim U(0, 1)`,
    S mixes styles and R replaces the content:

    .. math:: S(z)_j = n_j \sqrt{\sigma'^2_j + \epsilon} + \mu'_j, \quad
        \mu'_j = \alpha_j \mu_j + (1 - \alpha_j) \mu_{p(j)}, \text{ and } \sigma'^2 \text{ alike}; \qquad
        R(z)_j = \bar n_{p(j)} \sqrt{\sigma^2_j + \epsilon} + \mu_j,

    where no gradient flows through :math:`\bar n`. A step has three updates, each with its own forward pass and random
    numbers: (1) the featurizer and the content head g minimise :math:`\ell(g(S(z)), y)`; (2) the style head s minimises
    :math:`\ell(s(R(z)), y)`; (3) the featurizer minimises
    :math:`-w \operatorname{mean} \log \operatorname{softmax} s(R(z))`. As in DomainBed, the features are one vector per
    sample; the paper uses feature maps in the middle of a ResNet. Difference from DomainBed: ``nonlinear_classifier``
    adds layers to the content head only, not to both heads.

    Args:
        adversary_weight: Weight w of the adversarial loss of the featurizer.
    """

    needs_classes: ClassVar[bool] = True  # the adversarial loss is that of a softmax

    adversary_weight: float = hyper(0.1, Power(10, -2, 1), least=0, draw_as="sag_w_adv")  # w

    def build(self, features: nn.Module, width: int, num_classes: int, num_domains: int) -> Network:
        """Return a network with a content head and a style head."""
        return Network(features, nn.Linear(width, num_classes), style=nn.Linear(width, num_classes))

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """Return three Adam optimizers: for the featurizer, the content head and the style head."""
        prefixes = {"features": "features.", "content": "head.", "style": "style."}
        return OptimizerGroups(
            **{name: OptimizerGroup((prefix,), Adam(lr, weight_decay)) for name, prefix in prefixes.items()}
        )

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Update featurizer and content head, then the style head, then the featurizer against the style head."""
        (batch,) = batches
        keys = [self.random_key(state, update) for update in range(3)]

        def content_loss(model: Model) -> Loss:
            z = over_samples(lambda x: mix_styles(model.features(x), keys[0]), batch.x)
            risks = model.loss(over_samples(model.head, z), batch.y).mean(1)
            return Loss(model.add_penalties(risks, batch).mean())

        def style_logits(model: Model, key: Tensor) -> Tensor:
            return over_samples(lambda x: model.part("style")(replace_content(model.features(x), key)), batch.x)

        def style_loss(model: Model) -> Loss:
            return Loss(model.loss(style_logits(model, keys[1]), batch.y).mean())

        def adversary_loss(model: Model) -> Loss:
            return Loss(-self.adversary_weight * style_logits(model, keys[2]).log_softmax(-1).mean())

        updated, content = group_step(("features", "content"), content_loss, state, problem, keys[0])
        updated, style = group_step(("style",), style_loss, updated, problem, keys[1])
        updated, adversary = group_step(("features",), adversary_loss, updated, problem, keys[2])
        metrics = {"loss": content.value, "style_loss": style.value, "adversary_loss": adversary.value}
        return updated._replace(step=state.step + 1), metrics


def mix_styles(z: Tensor, key: Tensor) -> Tensor:
    """Return S(z) for features [N, n]: mix the style of each sample with that of its partner."""
    content, mean, variance = split_style(z)
    share, partner = draw_partners(len(z), key)
    share = share.to(z.dtype)  # α
    mean = share * mean + (1 - share) * mean.index_select(0, partner)
    variance = share * variance + (1 - share) * variance.index_select(0, partner)
    return content * (variance + EPSILON).sqrt() + mean


def replace_content(z: Tensor, key: Tensor) -> Tensor:
    """Return R(z) for features [N, n]: replace the content of each sample by that of its partner, as a constant."""
    content, mean, variance = split_style(z)
    _, partner = draw_partners(len(z), key)
    return content.detach().index_select(0, partner) * (variance + EPSILON).sqrt() + mean


def split_style(z: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Return the content [N, n], the mean [N, 1] and the variance [N, 1]."""
    mean, variance = z.mean(-1, keepdim=True), z.var(-1, keepdim=True)
    return (z - mean) / (variance + EPSILON).sqrt(), mean, variance


def draw_partners(count: int, key: Tensor) -> tuple[Tensor, Tensor]:
    """Return α [N, 1] and the index of the partner [N] of every sample."""
    return random.uniform(random.fold(key, 0), (count, 1)), random.permutation(random.fold(key, 1), count)
