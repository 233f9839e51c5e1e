"""ITTA: a learned consistency of features, to train with and to adapt to test images with."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import grad

from pogm._system.errors import UsageError
from pogm.core.batch import Batch
from pogm.core.hyperparameters import hyper
from pogm.core.model import Model, Network, cross_entropy, over_samples
from pogm.core.optimizers import Adam, Scalar
from pogm.core.problem import Problem
from pogm.core.state import Purpose, State
from pogm.core.trees import Params, Tree
from pogm.modifiers.adapting import Adapting
from pogm.modifiers.base import Modifier, Predictor, add_part
from pogm.modifiers.twin import TWIN, Twin, affine, branches, layers_of

SLOWER = 0.1  # the learning rate of A and of the maps, as a share of the network's
WEIGHT = 0.1  # of the mismatch

vjp: Any = torch.func.vjp  # whose type allows for a third result


@dataclass(frozen=True)
class ITTA(Modifier):
    r"""Improved test-time adaptation (Chen et al., 2023): features agree with those of another style.

    .. math:: \ell(g(z), y) + \ell(g(z'), y) + R, \qquad R = \operatorname{mean} A(z' - z)^2

    z' are the features of the same images with their styles mixed (as MixStyle does, always) after block 1 or block 2
    of the featurizer, each half of the time. A is 10 elementwise affine layers with ReLUs in between. After each round
    A, and nothing else, moves so that both losses pull the featurizer φ the same way: a step of its own Adam, at a
    tenth of the learning rate, on

    .. math:: 0.1 \operatorname{mean} (\hat u - \hat v)^2, \qquad u = \nabla_\phi R, \qquad
        v = \nabla_\phi [\ell(g(z), y) + \ell(g(z'), y)]

    where a hat standardises a vector by its own mean and deviation, taken as constants. At test time, 5 affine maps
    with ReLUs in between follow every block. Each 64 images move the maps by one step of Adam on ``adaptation`` · R, in
    the order they come, and are then predicted with them (``adapts``). The maps are the identity again for
    each domain and split.

    Where we leave the reference: it predicts one image at a time, which has no other style to mix with, so that R has
    no gradient and its maps never move; it carries the maps from domain to domain; and it adapts in training mode,
    we without dropout. What is negative in a block's output goes past the maps, so that they begin as the identity
    also where a block does not end with a ReLU. With ERM this is the published method. Methods that go through the
    domains one by one (POGM, Fish, MLDG and others) mix styles within a domain, and A moves once a round, with the last
    minibatch of all domains.
    """

    alpha: float = hyper(0.1, above=0)  # of the Beta distribution of how much of its style an image keeps
    adaptation: float = hyper(1e-6, above=0)  # ada_lr; 0.1 for DomainNet. Adam undoes it, but for its epsilon
    adapts: bool = hyper(True)

    predicts_by: ClassVar[int] = 64

    def network(self, network: Network) -> Network:
        """The network with a second branch, which shares all its weights."""
        blocks: tuple[str, ...] = getattr(network.features, "blocks", ())
        widths = [layer.in_features for layer in network.head.modules() if isinstance(layer, nn.Linear)]
        if len(blocks) < 2 or not widths:
            raise UsageError(
                "Expected a featurizer that names two or more blocks with feature maps, and a linear head, for ITTA; "
                f"found {len(blocks)} blocks and {len(widths)} linear layers. Choose mnist_cnn or a ResNet, for "
                "example with --set network=mnist_cnn."
            )
        if hasattr(network.features, "context"):
            raise UsageError(
                "Expected a featurizer that sees every image by itself, for ITTA; found one that sees it in a context, "
                "as ARM makes it, which the second branch has not. Choose another algorithm, or leave ITTA out."
            )
        add_part(network, TWIN, Twin(network.features, blocks, widths[0], self.alpha))
        return network

    def penalty(self, model: Model, batch: Batch) -> Tensor:
        """R + ℓ(g(z'), y) of each domain."""
        z, twin = branches(model, batch.x)
        consistency = affine(layers_of(model.buffers), twin - z).square().mean((1, 2))
        return consistency + _classification(model, twin, batch.y)

    def start(self, state: State, problem: Problem) -> Tree:
        """The moments of A's Adam."""
        if f"{TWIN}.weight" not in state.buffers:
            raise UsageError(
                "Expected a network that pogm builds for ITTA, which keeps weights of its own in it; found a module of "
                "yours. Train it as a trial, for example with pogm run --with ITTA."
            )
        return Adam(SLOWER * _rate(problem)).init(layers_of(state.buffers))

    def after(self, memory: Tree, state: State, batches: list[Batch], problem: Problem) -> tuple[Tree, State]:
        """A moves to where R pulls the featurizer as the classification does."""
        layers, rate = layers_of(state.buffers), SLOWER * _rate(problem)
        moved, memory = Adam(rate).update(layers, mismatch_gradient(layers, state, batches[-1], problem), memory)
        buffers = {f"{TWIN}.{name}": leaf for name, leaf in moved.items()}
        known = state.buffers[f"{TWIN}.rate"]
        buffers[f"{TWIN}.rate"] = (torch.zeros_like(known) + rate).to(known.dtype)
        return memory, state._replace(buffers=state.buffers | buffers)

    def predictor(self, predict: Predictor, model: Model) -> Predictor:
        """Adapt, then predict; batch after batch."""
        return Adapting(self.adaptation, predict, model) if self.adapts else predict


def mismatch_gradient(layers: Params, state: State, batch: Batch, problem: Problem) -> Params:
    """The gradient of 0.1 mean (û − v̂)² by A's layers, at random numbers of its own.

    With w the gradient by u it is that of ⟨w, u⟩, and u = Jᵀr for the Jacobian J of z' − z by φ and r = ∂R/∂(z' − z).
    So it is that of ⟨Jw, r⟩, where only r knows A: second derivatives of the network are not needed. Jᵀr is linear in
    r, so the gradient of ⟨w, Jᵀr⟩ by r is Jw.
    """
    state = state._replace(key=state.random_key(Purpose.MODIFIER, state.step))
    model = problem.model(state.params, state)
    weights = {name: leaf for name, leaf in state.params.items() if name.startswith("features.")}  # φ

    def features(weights: Params) -> tuple[Tensor, Tensor]:
        return branches(problem.model(state.params | weights, state), batch.x)

    def consistency(gap: Tensor, layers: Params) -> Tensor:
        return affine(layers, gap).square().mean()

    def classification(z: Tensor, twin: Tensor) -> Tensor:
        return (_classification(model, z, batch.y) + _classification(model, twin, batch.y)).mean()

    (z, twin), transposed = vjp(features, weights)
    r = grad(consistency)(twin - z, layers)
    u, forward = vjp(lambda r: _flat(*transposed((-r, r))), r)
    v = _flat(*transposed(grad(classification, argnums=(0, 1))(z, twin)))
    (change,) = forward(_mismatch_slope(u, v))  # J w
    gradient: Params = grad(lambda layers: (change * grad(consistency)(twin - z, layers)).sum())(layers)
    return gradient


def _mismatch_slope(u: Tensor, v: Tensor) -> Tensor:
    """The gradient of 0.1 mean (û − v̂)² by u; zero if u or v is all the same number."""
    scale, other = u.std(), v.std()
    gap = (u - u.mean()) / scale - (v - v.mean()) / other
    return torch.where((scale > 0) & (other > 0), 2 * WEIGHT * gap / (len(u) * scale), 0.0)


def _classification(model: Model, z: Tensor, y: Tensor) -> Tensor:
    """ℓ(g(z), y) of each domain: [K]."""
    return cross_entropy(over_samples(model.head, z), y).mean(1)


def _rate(problem: Problem) -> Scalar:
    """The learning rate."""
    rate: Scalar | None = getattr(problem.optimizer, "lr", None)
    if rate is None:
        raise UsageError(
            f"Expected an algorithm with one learning rate for ITTA; found {type(problem.optimizer).__name__}, which "
            "have several. Choose another algorithm, or leave ITTA out."
        )
    return rate


def _flat(tree: Params) -> Tensor:
    return torch.cat([leaf.flatten() for leaf in tree.values()])
