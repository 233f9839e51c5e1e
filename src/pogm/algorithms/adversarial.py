"""Base class of DANN and CDANN: adversarial training of the features against a domain discriminator."""

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import grad

from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import MOST_WIDTH, Choice, Large, Power, hyper
from pogm.core.losses import CROSS_ENTROPY
from pogm.core.model import Model, Network, over_samples
from pogm.core.optimizer_groups import OptimizerGroup, OptimizerGroups, group_step
from pogm.core.optimizers import Adam, Optimizer, Scalar
from pogm.core.problem import Problem
from pogm.core.random_layers import Dropout
from pogm.core.state import Loss, Metrics, State

BatchLoss = Callable[[Batch, Model], Loss]
RATE = Power(10, -4.5, -2.5)
LARGE_RATE = Large(5e-5, Power(10, -5, -3.5))
DECAY = Power(10, -6, -2)


@dataclass(frozen=True)
class Adversarial(Algorithm):
    """Adversarial training: a discriminator predicts the domain from features; the generator works against it.

    The generator is the featurizer and the classifier. A step uses 1 + m minibatches: the m-th updates the generator
    and the others update the discriminator, in the order of DomainBed. Each of the two has its own learning rate and
    weight decay; those of the run are not used. Both Adam optimizers have β₂ = 0.9.

    Args:
        adversary_weight: Weight λ of the discriminator loss in the generator loss.
        discriminator_steps: Number m of discriminator updates per generator update.
        gradient_penalty: Weight ρ of the penalty on the gradient of the discriminator loss.
        lr_g: Learning rate of the generator.
        lr_d: Learning rate of the discriminator.
        weight_decay_g: Weight decay of the generator.
        weight_decay_d: Weight decay of the discriminator.
        beta1: β₁ of both Adam optimizers.
        mlp_width: Hidden units per layer of the discriminator.
        mlp_depth: Number of linear layers of the discriminator.
        mlp_dropout: Dropout probability in the discriminator.
    """

    abstract: ClassVar[bool] = True

    adversary_weight: float = hyper(1.0, Power(10, -2, 2), least=0, draw_as="lambda")  # λ
    discriminator_steps: int = hyper(
        1, Power(2, 0, 3, integer=True), least=1, most=1000, draw_as="d_steps_per_g_step"
    )  # m
    gradient_penalty: float = hyper(0.0, Power(10, -2, 1), least=0, draw_as="grad_penalty")  # ρ
    lr_g: float = hyper(1e-3, RATE, large=LARGE_RATE, above=0)
    lr_d: float = hyper(1e-3, RATE, large=LARGE_RATE, above=0)
    weight_decay_g: float = hyper(0.0, large=Large(0.0, DECAY), least=0)
    weight_decay_d: float = hyper(0.0, DECAY, least=0)
    beta1: float = hyper(0.5, Choice(0.0, 0.5), least=0, most=0.999999)
    mlp_width: int = hyper(256, Power(2, 6, 10, integer=True), least=1, most=MOST_WIDTH)
    mlp_depth: int = hyper(3, Choice(3, 4, 5), least=2, most=100)
    mlp_dropout: float = hyper(0.0, Choice(0.0, 0.1, 0.5), least=0, most=0.99)

    @property
    def minibatches(self) -> int:
        """1 + m: one generator update and m discriminator updates."""
        return 1 + self.discriminator_steps

    def build(self, features: nn.Module, width: int, num_classes: int, num_domains: int) -> Network:
        """Add a discriminator to the network: linear layers with dropout and ReLU between them."""
        discriminator = build_mlp(width, self.mlp_width, self.mlp_depth, self.mlp_dropout, num_domains)
        return Network(features, nn.Linear(width, num_classes), discriminator=discriminator)

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """Return one Adam for the generator and one for the discriminator."""
        generator = Adam(self.lr_g, self.weight_decay_g, self.beta1, 0.9)
        discriminator = Adam(self.lr_d, self.weight_decay_d, self.beta1, 0.9)
        return OptimizerGroups(
            generator=OptimizerGroup(("features.", "head."), generator),
            discriminator=OptimizerGroup(("discriminator.", "embedding."), discriminator),
        )

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Update the generator once and the discriminator m times."""
        keys = [self.random_key(state, index) for index in range(len(batches))]
        return take_turns(self.generator_loss, self.discriminator_loss, state, batches, problem, keys)

    def generator_loss(self, batch: Batch, model: Model) -> Loss:
        """Return the mean risk − λ d."""
        z = over_samples(model.features, batch.x)  # [K, B, n]
        risk = model.add_penalties(model.loss(over_samples(model.head, z), batch.y).mean(1), batch).mean()
        value = risk - self.adversary_weight * self.domain_loss(model, z, batch.y)
        return Loss(value, {"loss": risk, "gen_loss": value})

    def discriminator_loss(self, batch: Batch, model: Model) -> Loss:
        """Return d."""
        return Loss(self.domain_loss(model, over_samples(model.features, batch.x), batch.y))

    def domain_loss(self, model: Model, z: Tensor, y: Tensor) -> Tensor:
        """Return d: the cross-entropy of the discriminator plus the gradient penalty."""
        domains = torch.arange(z.shape[0], device=z.device).unsqueeze(1).expand(z.shape[:2])  # [K, B]
        u = self.discriminator_input(model, z, y)

        def loss_sum(u: Tensor) -> tuple[Tensor, Tensor]:
            losses = CROSS_ENTROPY(over_samples(model.part("discriminator"), u), domains)
            return losses.sum(), losses

        if isinstance(self.gradient_penalty, float) and self.gradient_penalty == 0:  # a tensor in a batch of trials
            return self.reduce_losses(loss_sum(u)[1], y)
        gradient, losses = grad(loss_sum, has_aux=True)(u)
        penalised: Tensor = self.reduce_losses(losses, y) + self.gradient_penalty * gradient.square().sum(-1).mean()
        return penalised

    def discriminator_input(self, model: Model, z: Tensor, y: Tensor) -> Tensor:
        """Return the input u of the discriminator, [K, B, n]; by default the features."""
        return z

    def reduce_losses(self, losses: Tensor, y: Tensor) -> Tensor:
        """Reduce the cross-entropies [K, B] to a scalar; by default the mean."""
        return losses.mean()


def take_turns(
    generator_loss: BatchLoss,
    discriminator_loss: BatchLoss,
    state: State,
    batches: list[Batch],
    problem: Problem,
    keys: list[Tensor],
) -> tuple[State, Metrics]:
    """Update the generator with the last but one of m + 1 minibatches, and the discriminator with the others.

    Returns:
        The next state, and the metrics of the generator with the mean loss of the discriminator.
    """
    updated, metrics, discriminator_losses = state, {}, []
    for index, batch in enumerate(batches):
        if index == len(batches) - 2:  # the m-th minibatch
            objective = partial(generator_loss, batch)
            updated, loss = group_step(("generator",), objective, updated, problem, keys[index])
            metrics = loss.metrics
        else:
            objective = partial(discriminator_loss, batch)
            updated, loss = group_step(("discriminator",), objective, updated, problem, keys[index])
            discriminator_losses.append(loss.value)
    metrics = {**metrics, "disc_loss": torch.stack(discriminator_losses).mean()}
    return updated._replace(step=state.step + 1), metrics


def build_mlp(inputs: int, width: int, depth: int, dropout: float | None, outputs: int) -> nn.Sequential:
    """Build a discriminator: ``depth`` linear layers with dropout, unless it is None, and ReLU between them."""
    sizes = [inputs, *[width] * (depth - 1)]
    drop = nn.Identity if dropout is None else partial(Dropout, dropout)
    hidden = [(nn.Linear(a, b), drop(), nn.ReLU()) for a, b in pairwise(sizes)]
    return nn.Sequential(*(layer for group in hidden for layer in group), nn.Linear(width, outputs))
