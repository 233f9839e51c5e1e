"""URM: uniform risk minimisation, features that are uniformly distributed."""

import copy
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.nn.functional import binary_cross_entropy_with_logits

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm, MakeFeatures
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, Large, Power, Uniform, hyper
from pogm.core.model import Model, Network, over_samples
from pogm.core.optimizer_groups import OptimizerGroup, OptimizerGroups
from pogm.core.optimizers import Adam, Optimizer, Scalar
from pogm.core.state import Loss, State

ACTIVATIONS = {"tanh": (nn.Tanh, -1.0), "relu": (nn.ReLU, 0.0), "sigmoid": (nn.Sigmoid, 0.0)}  # and the least value
WIDTH = 100  # hidden units per layer of the discriminator


@dataclass(frozen=True)
class URM(Algorithm):
    r"""Uniform risk minimisation (Krishnamachari et al., TMLR 2024): features that look like uniform noise.

    A discriminator D distinguishes the features z, which end with an activation such as tanh, from noise u that is
    uniformly distributed over [−1, 1) (tanh) or [0, 1) in every feature. The featurizer φ and the classifier g work
    against it:

    .. math:: \min_{\phi, g} \tfrac1K \sum_k L_k + \lambda \operatorname{mean} \beta(D(z), 1), \qquad
        \min_D \operatorname{mean} \beta(D(u), 1) + \lambda \operatorname{mean} \beta(D(z), 0)

    with the binary cross-entropy β. As in DomainBed, both updates use the features before the step and λ weights the
    features in both losses. Differences from DomainBed: one backward pass computes both gradients; of its optimizers
    for the discriminator only Adam is available, the one that its search uses.

    Args:
        adversary_weight: Weight λ of the features in both losses.
        output: Activation of the features: "tanh", "relu" or "sigmoid".
        hidden_layers: Number of hidden layers of the discriminator after the first one.
        label_smoothing: Largest random deviation of the labels of the discriminator from 0 and 1.
        lr_d: Learning rate of the discriminator.
    """

    adversary_weight: float = hyper(0.1, Uniform(0, 0.2), least=0, draw_as="urm_adv_lambda")  # λ
    output: str = hyper("tanh", Choice("tanh", "relu"), options=tuple(ACTIVATIONS), draw_as="urm_generator_output")
    hidden_layers: int = hyper(1, Choice(1, 2, 3), least=0, most=100, draw_as="urm_discriminator_hidden_layers")
    label_smoothing: float = hyper(0.0, least=0, most=1, draw_as="urm_discriminator_label_smoothing")
    lr_d: float = hyper(
        1e-3, Power(10, -5.5, -3.5), large=Large(5e-5, Power(10, -6, -4.5)), above=0, draw_as="urm_discriminator_lr"
    )

    def featurizer(self, make: MakeFeatures, shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        """Return a featurizer that ends with the activation."""
        features, width = make(shape)
        if not isinstance(features, nn.Sequential):
            raise UsageError(
                f"Expected a featurizer that is a sequence of stages, because URM adds one; found "
                f"{type(features).__name__}. Choose another network."
            )
        features.add_module("activation", ACTIVATIONS[self.output][0]())  # in place, to keep hooks and attributes
        return features, width

    def build(self, features: nn.Module, width: int, num_classes: int, num_domains: int) -> Network:
        """Add a discriminator to the network: linear layers with leaky ReLU between them."""
        head = nn.Linear(width, num_classes)
        layers: list[nn.Module] = [nn.Linear(width, WIDTH), nn.LeakyReLU()]
        for _ in range(self.hidden_layers):
            layers += [nn.Linear(WIDTH, WIDTH), nn.LeakyReLU()]
        discriminator = nn.Sequential(*layers, nn.Linear(WIDTH, 1))
        return Network(features, head, discriminator=discriminator)

    def optimizer(self, lr: Scalar, weight_decay: Scalar) -> Optimizer:
        """Return one Adam for the featurizer and the classifier, and one for the discriminator."""
        return OptimizerGroups(
            generator=OptimizerGroup(("features.", "head."), Adam(lr, weight_decay)),
            discriminator=OptimizerGroup(("discriminator.",), Adam(self.lr_d, weight_decay)),
        )

    def loss(self, model: Model, batch: Batch, state: State) -> Loss:
        """Return the sum of both losses. Each has only the gradient of its own weights: the rest is constant in it."""
        z = over_samples(model.features, batch.x)  # [K, B, n]
        risk = model.risks_from_features(z, batch).mean()
        constant = copy.copy(model)
        constant.params = {name: leaf.detach() for name, leaf in model.params.items()}
        real = torch.ones_like(z[..., 0])
        fooling = binary_cross_entropy_with_logits(judge(constant, z), real)

        smooth = [self.label_smoothing * self.draw(state, purpose, real) for purpose in (1, 2)]
        least = ACTIVATIONS[self.output][1]
        noise = least + (1 - least) * self.draw(state, 0, z)  # u
        judged_noise = binary_cross_entropy_with_logits(judge(model, noise), 1 - smooth[0])
        judged_features = binary_cross_entropy_with_logits(judge(model, z.detach()), smooth[1])

        generator = risk + self.adversary_weight * fooling
        discriminator = judged_noise + self.adversary_weight * judged_features
        metrics = {"loss": risk, "gen_loss": generator, "disc_loss": discriminator}
        return Loss(generator + discriminator, metrics)

    def draw(self, state: State, purpose: int, like: Tensor) -> Tensor:
        """Draw numbers from U[0, 1) in the shape and dtype of a tensor."""
        return random.uniform(self.random_key(state, purpose), tuple(like.shape)).to(like.dtype)


def judge(model: Model, z: Tensor) -> Tensor:
    """Return the logits of the discriminator, [K, B]: positive for noise."""
    return over_samples(model.part("discriminator"), z).squeeze(-1)
