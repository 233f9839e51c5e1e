"""ADRMX: additive disentanglement of domain features with a remix loss."""

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn.functional import normalize

from pogm._system.errors import UsageError
from pogm.algorithms.adversarial import build_mlp, take_turns
from pogm.algorithms.base import Algorithm, MakeFeatures
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import MOST_WIDTH, Choice, Large, hyper
from pogm.core.losses import CROSS_ENTROPY
from pogm.core.model import Model, Network, over_samples
from pogm.core.optimizer_groups import OptimizerGroup, OptimizerGroups
from pogm.core.optimizers import Adam, Optimizer, Scalar
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State

TEMPERATURE, SHARE, EPSILON = 0.07, 0.5, 1e-5  # of the contrastive loss


@dataclass(frozen=True)
class ADRMX(Algorithm):
    r"""Additive disentanglement with remix (Demirel et al., 2023): subtract domain features from label features.

    Two featurizers give label features z and domain features d; their difference :math:`v = z - d` should not depend on
    the domain. Heads g and h predict the class and q the domain; a discriminator D predicts the domain from v:

    .. math:: \min_D c, \qquad \min \; \ell(g(z), y) + \ell(h(v), y) + \lambda_q \ell(q(d), k) + \lambda_r R
        + \lambda_s (S(z) + S(v)) - \lambda_d c, \qquad c = \ell(D(v), k), \\
        R = \tfrac1C \sum_y \ell(g(v_i + d_j), y), \qquad
        S(u) = - \tfrac{1}{M + 1} \sum_i \operatorname{mean}_{p: y_p = y_i}
        \log \Big( \frac{w_{ip}}{\epsilon + \sum_{l \ne i} w_{il}} + \epsilon \Big), \quad
        w_{ij} = \tfrac12 e^{\cos(u_i, u_j) / 0.07}, \quad \epsilon = 10^{-5}

    For each class y, i and j are random samples of y from different domains (the term is 0 if there are none). S is a
    supervised contrastive loss over the M samples i whose class occurs twice or more, and p ≠ i. The prediction is
    g(z). A step uses 1 + m minibatches, in the order of `Adversarial`. All heads have three layers, and both Adam
    optimizers have β₂ = 0.9 and no weight decay. Difference from DomainBed: its indices i and j of the remix loss point
    to the first samples of the minibatch, whatever their classes are, by a mistake (``as_released=True`` reproduces
    it). The paper is arXiv:2308.06624.

    Args:
        contrast_weight: Weight λ_s of the contrastive losses.
        domain_weight: Weight λ_q of the loss of the domain head.
        adversary_weight: Weight λ_d of the discriminator loss.
        remix_weight: Weight λ_r of the remix loss.
        discriminator_steps: Number m of discriminator updates per update of the rest.
        lr_all: Learning rate of both optimizers; that of the run is not used.
        beta1: β₁ of both Adam optimizers.
        mlp_width: Hidden units per layer of the discriminator.
        mlp_depth: Number of linear layers of the discriminator.
        as_released: Whether to choose the samples of the remix loss as DomainBed does.
    """

    needs_classes: ClassVar[bool] = True  # pairs of samples have the same class

    contrast_weight: float = hyper(1.0, least=0, draw_as="cnt_lambda")  # λ_s
    domain_weight: float = hyper(1.0, least=0, draw_as="dclf_lambda")  # λ_q
    adversary_weight: float = hyper(0.75, least=0, draw_as="disc_lambda")  # λ_d
    remix_weight: float = hyper(1.0, least=0, draw_as="rmxd_lambda")  # λ_r
    discriminator_steps: int = hyper(2, least=1, most=1000, draw_as="d_steps_per_g_step")  # m
    lr_all: float = hyper(
        3e-3, Choice(5e-4, 1e-3, 2e-3, 3e-3), large=Large(3e-5, Choice(2e-5, 3e-5, 4e-5, 5e-5)), above=0, draw_as="lr"
    )
    beta1: float = hyper(0.5, least=0, most=0.999999)
    mlp_width: int = hyper(256, least=1, most=MOST_WIDTH)
    mlp_depth: int = hyper(9, Choice(8, 9, 10), least=2, most=100)
    as_released: bool = hyper(False)

    @property
    def minibatches(self) -> int:
        """1 + m: one update of the featurizers and heads, and m discriminator updates."""
        return 1 + self.discriminator_steps

    def featurizer(self, make: MakeFeatures, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return both featurizers, which `build` separates."""
        features, width = make(shape)
        return nn.ModuleDict({"features": features, "domain_features": make(shape)[0]}), width

    def build(self, features: nn.Module, width: int, num_classes: int, num_domains: int) -> Network:
        """Return a network with two featurizers, three heads and a discriminator."""
        assert isinstance(features, nn.ModuleDict)
        return Network(
            features["features"],
            _three_layers(width, num_classes),
            domain_features=features["domain_features"],
            difference_head=_three_layers(width, num_classes),
            domain_head=_three_layers(width, num_domains),
            discriminator=build_mlp(width, self.mlp_width, self.mlp_depth, None, num_domains),
        )

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """Return one Adam for featurizers and heads, and one for the discriminator."""
        adam = Adam(self.lr_all, 0.0, self.beta1, 0.9)
        generator = ("features.", "domain_features.", "head.", "difference_head.", "domain_head.")
        return OptimizerGroups(
            generator=OptimizerGroup(generator, adam), discriminator=OptimizerGroup(("discriminator.",), adam)
        )

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Update featurizers and heads once and the discriminator m times."""
        keys = [self.random_key(state, index) for index in range(len(batches))]
        remix_key = self.random_key(state, len(batches))

        def generator_loss(batch: Batch, model: Model) -> Loss:
            return self.generator_loss(batch, model, remix_key)

        return take_turns(generator_loss, self.discriminator_loss, state, batches, problem, keys)

    def discriminator_loss(self, batch: Batch, model: Model) -> Loss:
        """Return c."""
        z, d = (over_samples(model.part(part), batch.x) for part in ("features", "domain_features"))
        return Loss(_mean_loss(model, "discriminator", z - d, _domains(batch)))

    def generator_loss(self, batch: Batch, model: Model, key: Tensor) -> Loss:
        """Return the objective of featurizers and heads."""
        if batch.y.is_floating_point():
            raise UsageError(
                "Expected labels that are classes, because ADRMX compares samples of one class; found "
                "probabilities, as Mixup makes them. Leave the modifier out."
            )
        y, k = batch.y, _domains(batch)
        z, d = (over_samples(model.part(part), batch.x) for part in ("features", "domain_features"))
        v = z - d
        logits = over_samples(model.head, z)  # [K, B, C]
        risk = model.add_penalties(model.loss(logits, y).mean(1), batch).mean()
        pairs = self.draw_pairs(y.flatten(), k.flatten(), logits.shape[-1], key)
        contrast = contrastive_loss(z.flatten(0, 1), y.flatten()) + contrastive_loss(v.flatten(0, 1), y.flatten())
        value = (
            risk
            + _mean_loss(model, "difference_head", v, y)
            + self.domain_weight * _mean_loss(model, "domain_head", d, k)
            + self.remix_weight * self.remix_loss(model, v.flatten(0, 1), d.flatten(0, 1), y.flatten(), pairs)
            + self.contrast_weight * contrast
            - self.adversary_weight * _mean_loss(model, "discriminator", v, k)
        )
        return Loss(value, {"loss": risk, "gen_loss": value})

    def remix_loss(self, model: Model, v: Tensor, d: Tensor, y: Tensor, pairs: tuple[Tensor, Tensor, Tensor]) -> Tensor:
        """Return R, for features [K · B, n], labels [K · B], and the pairs of `draw_pairs`."""
        first, second, valid = pairs
        logits = model.head(v.index_select(0, first) + d.index_select(0, second))  # [C, C]
        losses = CROSS_ENTROPY(logits[None], y.index_select(0, first)[None])[0]
        return torch.where(valid, losses, 0.0).sum() / len(valid)

    def draw_pairs(self, y: Tensor, domains: Tensor, classes: int, key: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """Draw i and j for every class, [C] each; the third tensor is False for classes without a pair."""
        members = y == torch.arange(classes, device=y.device).unsqueeze(1)  # [C, N]
        position = torch.arange(len(y), device=y.device)
        if self.as_released:
            members = position < members.sum(1, keepdim=True)
        draws = random.uniform(key, (2, classes, len(y)))
        kind = position if self.as_released else domains  # i and j differ in it
        different = kind.unsqueeze(1) != kind  # [N, N]
        has_partner = members & (members.unsqueeze(1) & different).any(2)
        first = torch.where(has_partner, draws[0], -1.0).argmax(1)  # i
        second = torch.where(members & different.index_select(0, first), draws[1], -1.0).argmax(1)  # j
        return first, second, has_partner.any(1)


def contrastive_loss(u: Tensor, y: Tensor) -> Tensor:
    """Return S(u), for features [N, n] and labels [N]."""
    directions = normalize(u, dim=1)
    others = ~torch.eye(len(u), dtype=torch.bool, device=u.device)
    positive = (y.unsqueeze(1) == y) & others
    weights = SHARE * torch.exp(directions @ directions.mT / TEMPERATURE)  # w
    total = torch.where(others, weights, 0.0).sum(1, keepdim=True) + EPSILON
    logs = torch.where(positive, torch.log(weights / total + EPSILON), 0.0)
    counts = positive.sum(1)
    return -(logs.sum(1) / counts.clamp(min=1)).sum() / ((counts > 0).sum() + 1)


def _mean_loss(model: Model, part: str, inputs: Tensor, targets: Tensor) -> Tensor:
    """Return the mean cross-entropy of a head or the discriminator."""
    return CROSS_ENTROPY(over_samples(model.part(part), inputs), targets).mean()


def _domains(batch: Batch) -> Tensor:
    """Return the number of the domain of each sample, [K, B]."""
    shape = batch.y.shape[:2]
    return torch.arange(shape[0], device=batch.y.device).unsqueeze(1).expand(shape)


def _three_layers(width: int, outputs: int) -> nn.Sequential:
    """Build the nonlinear classifier of DomainBed: each layer is half as wide as the one before."""
    half, quarter = max(width // 2, 1), max(width // 4, 1)
    return nn.Sequential(
        nn.Linear(width, half), nn.ReLU(), nn.Linear(half, quarter), nn.ReLU(), nn.Linear(quarter, outputs)
    )
