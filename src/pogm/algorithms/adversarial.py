"""What DANN and CDANN share: a discriminator of domains, and a generator of features that plays against it."""

from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.func import grad

from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.dropout import Dropout
from pogm.core.hyperparameters import Choice, Large, Power, hyper
from pogm.core.model import Model, Network, cross_entropy, over_samples
from pogm.core.optimizer_groups import OptimizerGroup, OptimizerGroups, group_step
from pogm.core.optimizers import Adam, Optimizer, Scalar
from pogm.core.problem import Problem
from pogm.core.state import Loss, Metrics, State

RATE = Power(10, -4.5, -2.5)
LARGE_RATE = Large(5e-5, Power(10, -5, -3.5))
DECAY = Power(10, -6, -2)


@dataclass(frozen=True)
class Adversarial(Algorithm):
    """A game of two: the discriminator tells domains apart by features; the generator makes that hard and classifies.

    They take turns. A round is 1 + m minibatches, of which the generator moves with the m-th and the discriminator
    with the others, in the order of DomainBed's counter. The learning rate and the weight decay of the run are not
    used: each player has its own.
    """

    abstract: ClassVar[bool] = True

    adversary_weight: float = hyper(1.0, Power(10, -2, 2), least=0, draw_as="lambda")  # lambda
    discriminator_steps: int = hyper(1, Power(2, 0, 3, integer=True), least=1, draw_as="d_steps_per_g_step")  # m
    gradient_penalty: float = hyper(0.0, Power(10, -2, 1), least=0, draw_as="grad_penalty")
    lr_g: float = hyper(1e-3, RATE, large=LARGE_RATE, above=0)  # of the generator
    lr_d: float = hyper(1e-3, RATE, large=LARGE_RATE, above=0)  # of the discriminator
    weight_decay_g: float = hyper(0.0, large=Large(0.0, DECAY), least=0)
    weight_decay_d: float = hyper(0.0, DECAY, least=0)
    beta1: float = hyper(0.5, Choice(0.0, 0.5), least=0, most=0.999999)  # of both Adams; their beta2 is 0.9
    mlp_width: int = hyper(256, Power(2, 6, 10, integer=True), least=1)  # of the discriminator, as the next two
    mlp_depth: int = hyper(3, Choice(3, 4, 5), least=2)
    mlp_dropout: float = hyper(0.0, Choice(0.0, 0.1, 0.5), least=0, most=0.99)

    @property
    def minibatches(self) -> int:
        """1 + m."""
        return 1 + self.discriminator_steps

    def build(self, features: nn.Module, width: int, num_classes: int, num_domains: int) -> Network:
        """A discriminator beside the classifier: linear layers with dropout and ReLU between them."""
        sizes = [width, *[self.mlp_width] * (self.mlp_depth - 1)]
        hidden = [(nn.Linear(a, b), Dropout(self.mlp_dropout), nn.ReLU()) for a, b in pairwise(sizes)]
        layers = [layer for group in hidden for layer in group]
        discriminator = nn.Sequential(*layers, nn.Linear(self.mlp_width, num_domains))
        return Network(features, nn.Linear(width, num_classes), discriminator=discriminator)

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """One Adam for each player."""
        generator = Adam(self.lr_g, self.weight_decay_g, self.beta1, 0.9)
        discriminator = Adam(self.lr_d, self.weight_decay_d, self.beta1, 0.9)
        return OptimizerGroups(
            generator=OptimizerGroup(("features.", "head."), generator),
            discriminator=OptimizerGroup(("discriminator.", "embedding."), discriminator),
        )

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """One round of the game."""
        played, reported, dis = state, {}, []
        for number, batch in enumerate(batches):
            key = self.random_key(state, number)
            if number == self.discriminator_steps - 1:  # the m-th
                played, loss = group_step(("generator",), partial(self.against, batch), played, problem, key)
                reported = loss.metrics
            else:
                played, loss = group_step(("discriminator",), partial(self.telling_apart, batch), played, problem, key)
                dis.append(loss.value)
        return played._replace(step=state.step + 1), {**reported, "disc_loss": torch.stack(dis).mean()}

    def against(self, batch: Batch, model: Model) -> Loss:
        """What the generator minimises: the risk less what the discriminator minimises."""
        z = over_samples(model.features, batch.x)  # [K, B, n]
        risk = model.penalised(cross_entropy(over_samples(model.head, z), batch.y).mean(1), batch).mean()
        value = risk - self.adversary_weight * self.dis(model, z, batch.y)
        return Loss(value, {"loss": risk, "gen_loss": value})

    def telling_apart(self, batch: Batch, model: Model) -> Loss:
        """What the discriminator minimises."""
        return Loss(self.dis(model, over_samples(model.features, batch.x), batch.y))

    def dis(self, model: Model, z: Tensor, y: Tensor) -> Tensor:
        """How badly the discriminator tells domains apart, with a penalty on its slopes."""
        domains = torch.arange(z.shape[0], device=z.device).unsqueeze(1).expand(z.shape[:2])  # [K, B]
        u = self.seen(model, z, y)

        def summed(u: Tensor) -> tuple[Tensor, Tensor]:
            losses = cross_entropy(over_samples(model.part("discriminator"), u), domains)
            return losses.sum(), losses

        if isinstance(self.gradient_penalty, float) and self.gradient_penalty == 0:  # else a batch of trials, maybe
            return self.averaged(summed(u)[1], y)
        group_gradient, losses = grad(summed, has_aux=True)(u)
        penalised: Tensor = self.averaged(losses, y) + self.gradient_penalty * group_gradient.square().sum(-1).mean()
        return penalised

    def seen(self, model: Model, z: Tensor, y: Tensor) -> Tensor:
        """What the discriminator sees: [K, B, n]."""
        return z

    def averaged(self, losses: Tensor, y: Tensor) -> Tensor:
        """One number of its cross-entropies [K, B]."""
        return losses.mean()
