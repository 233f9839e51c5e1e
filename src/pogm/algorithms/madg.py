"""Margin-based adversarial learning."""

from collections import OrderedDict
from dataclasses import dataclass
from functools import partial
from itertools import combinations
from typing import Any, ClassVar

import torch
from torch import Tensor, nn

from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.dropout import Dropout
from pogm.core.hyperparameters import Choice, Large, hyper
from pogm.core.model import Model, Network, cross_entropy, over_samples, probabilities
from pogm.core.optimizer_groups import OptimizerGroup, OptimizerGroups, group_gradient
from pogm.core.optimizers import Adam, Optimizer, Scalar
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State

EPSILON = 1e-6


@dataclass(frozen=True)
class MADG(Algorithm):
    r"""Margin-based adversarial learning (Dayal et al., 2023): no pair of domains on which a rival could disagree.

    The head is a bottleneck and a classifier. Every pair of domains i < j has a rival of the classifier, which learns
    to repeat the classifier's guesses :math:`\hat y` on i and to contradict them on j; the features learn the reverse,

    .. math:: \min_{\phi, b, g} \sum_k L_k, \qquad \min_h \max_{\phi, b} \sum_{i<j} T_{ij}, \qquad
        T_{ij} = \gamma\, \ell(h_{ij}(z_i), \hat y_i) - \operatorname{mean} \log (1 - p_{ij}(\hat y_j \mid z_j)),

    in two moves of a step, each with a pass and dropout of its own. In the second the gradient of featurizer and
    bottleneck is multiplied by :math:`-\beta_t`, which is what a gradient-reversal layer before the rivals does, with
    :math:`\beta_t = \beta (2 / (1 + e^{-t / 1000}) - 1)` as in MDD (Zhang et al., 2019).

    Where we leave the authors' code: Adam with the run's learning rate for the featurizer and 5 times that for the
    rest, instead of SGD; no bias before the batch norm, which would take it out again; and two slips are put right:
    there the second move adds the first one's gradient once more, and β stays at :math:`\beta_1`, almost 0.
    ``as_released`` brings both back; that script also reports the best test accuracy of its 2000 steps, which we
    leave to the protocol. The ranges, and the width for small images, are our choice.
    """

    margin: float = hyper(2.0, Choice(1.0, 2.0, 3.0, 4.0), above=0, draw_as="madg_margin")  # gamma
    reversal: float = hyper(0.1, Choice(0.05, 0.1, 0.2), least=0, draw_as="madg_beta_max")  # beta
    width: int = hyper(128, large=Large(1024), least=1, draw_as="madg_width")  # of the bottleneck
    as_released: bool = hyper(False)  # with the two slips

    min_domains: ClassVar[int] = 2  # one has no pair

    def build(self, features: nn.Module, width: int, num_classes: int, num_domains: int) -> Network:
        """The head, and as many rivals as there are pairs of domains."""
        inner = self.width
        first = nn.Linear(width, inner, bias=False)
        nn.init.normal_(first.weight, std=0.005)
        bottleneck = nn.Sequential(first, nn.BatchNorm1d(inner), nn.ReLU(), Dropout(0.5))
        head = OrderedDict[str, nn.Module](bottleneck=bottleneck, classifier=_classifier(inner, num_classes))
        rivals = nn.ModuleList(_classifier(inner, num_classes) for _ in combinations(range(num_domains), 2))
        return Network(features, nn.Sequential(head), rivals=rivals)

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """Adam; all but the featurizer learn five times as fast."""
        fast = Adam(5 * lr, weight_decay)
        return OptimizerGroups(
            features=OptimizerGroup(("features.",), Adam(lr, weight_decay)),
            bottleneck=OptimizerGroup(("head.bottleneck.",), fast),
            classifier=OptimizerGroup(("head.classifier.",), fast),
            rivals=OptimizerGroup(("rivals.",), fast),
        )

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """The classifier's move, then that of the rivals and of the features against them."""
        (batch,) = batches
        keys = [self.random_key(state, move) for move in range(2)]
        gradient, of_classifier = group_gradient(
            ("features", "bottleneck", "classifier"), partial(risk, batch), state, problem, keys[0]
        )
        moved = state.descend(gradient, problem.optimizer, of_classifier)._replace(step=state.step)
        against, of_rivals = group_gradient(
            ("features", "bottleneck", "rivals"), partial(self.disagreement, batch), moved, problem, keys[1]
        )
        gradient = {name: gradient[name] for name in against if name in gradient and self.as_released}
        changed = {name: self.turned(name, leaf, state) + gradient.get(name, 0) for name, leaf in against.items()}
        moved = moved.descend(changed, problem.optimizer, of_rivals)
        return moved, {**of_classifier.metrics, "disagreement": of_rivals.value}

    def turned(self, name: str, leaf: Tensor, state: State) -> Tensor:
        """A gradient as the rivals' leaves have it, or as those behind the reversal have it."""
        return leaf if name.startswith("rivals.") else -self.strength(state).to(leaf.dtype) * leaf

    def strength(self, state: State) -> Tensor:
        """β_t."""
        t = torch.ones_like(state.step) if self.as_released else state.step
        return self.reversal * (2 * torch.sigmoid(t.double() / 1000) - 1)

    def disagreement(self, batch: Batch, model: Model) -> Loss:
        """Σ T_ij."""
        z = over_samples(model.part("head.bottleneck"), over_samples(model.features, batch.x))  # [K, B, w]
        guess = over_samples(model.part("head.classifier"), z).argmax(-1)  # ŷ: [K, B]
        total: Any = 0.0
        for number, (i, j) in enumerate(combinations(range(len(z)), 2)):
            source, target = over_samples(model.part(f"rivals.{number}"), torch.stack([z[i], z[j]]))
            agreed = cross_entropy(source[None], guess[i][None]).mean()
            same = (target.softmax(-1) * probabilities(guess[j], target.shape[-1])).sum(-1)
            contradicted = -(1 - same + EPSILON).clamp(max=1).log().mean()
            total = total + self.margin * agreed + contradicted
        return Loss(total)


def risk(batch: Batch, model: Model) -> Loss:
    """Σ L_k, with their mean to report."""
    risks = model.risks(batch)
    return Loss(risks.sum(), {"loss": risks.mean()})


def _classifier(width: int, num_classes: int) -> nn.Sequential:
    first, last = nn.Linear(width, width), nn.Linear(width, num_classes)
    for layer in (first, last):
        nn.init.normal_(layer.weight, std=0.01)
        nn.init.zeros_(layer.bias)
    return nn.Sequential(first, nn.ReLU(), Dropout(0.5), last)
