"""ITTA: a learned consistency loss, for training and for adaptation at test time."""

from dataclasses import dataclass
from typing import Any, ClassVar

import torch
from torch import Tensor, nn
from torch.func import grad

from pogm._system.errors import UsageError
from pogm.core.batch import Batch
from pogm.core.hyperparameters import hyper
from pogm.core.model import Model, Network, over_samples
from pogm.core.optimizers import Adam, Scalar
from pogm.core.problem import Problem
from pogm.core.state import Purpose, State
from pogm.core.trees import Params, Tree
from pogm.modifiers.adapting import AdaptingPredictor
from pogm.modifiers.base import ONLINE, Modifier, Predictor, add_part
from pogm.modifiers.twin import TWIN, Twin, apply_affine, both_features, consistency_layers

RATE = 0.1  # learning rate of A and of the test-time maps, relative to that of the network
WEIGHT = 0.1  # weight of the mismatch

vjp: Any = torch.func.vjp  # its type allows a third result


@dataclass(frozen=True)
class ITTA(Modifier):
    r"""Improved test-time adaptation (Chen et al., 2023): a learned consistency between features with different styles.

    .. math:: \ell(g(z), y) + \ell(g(z'), y) + R, \qquad R = \operatorname{mean} A(z' - z)^2

    z' are the features of the same images with mixed styles (see `MixStyle`) after block 1 or block 2 of the
    featurizer, each with probability one half. A consists of 10 elementwise affine layers with ReLU between them. After
    each step, A is trained so that both losses have similar gradients with respect to the featurizer φ: one step of a
    separate Adam, with a tenth of the learning rate, on

    .. math:: 0.1 \operatorname{mean} (\hat u - \hat v)^2, \qquad u = \nabla_\phi R, \qquad
        v = \nabla_\phi [\ell(g(z), y) + \ell(g(z'), y)]

    where a hat standardises a vector by its mean and its standard deviation, as constants. At test time, 5 affine maps
    with ReLU between them follow every block. Each batch of 64 images trains the maps by one step of Adam on
    ``adaptation`` · R and is then predicted with them (``adapts``). The maps start as the identity for each domain and
    split. With ERM this is the published method. Methods with one pass per domain (POGM, Fish, MLDG and others) mix
    styles within a domain, and A is trained once per step, with the last minibatch of all domains.

    Differences from the reference code: it predicts one image at a time, which has no other style to mix with, so R has
    no gradient and the maps never change; it keeps the maps from domain to domain; it adapts with dropout, we without.
    We do not apply the maps to negative values, so that they start as the identity also after blocks without a ReLU.

    Args:
        alpha: Parameter of the Beta distribution of the mixed styles.
        adaptation: Weight of R at test time (``ada_lr``); 0.1 for DomainNet. Adam is invariant to it, except for its ε.
        adapts: Whether to adapt at test time.
    """

    alpha: float = hyper(0.1, above=0)
    adaptation: float = hyper(1e-6, above=0)
    adapts: bool = hyper(True)

    needs_network: ClassVar[str] = "a network with two blocks of feature maps"
    prediction_batch_size: ClassVar[int] = 64
    sees_at_test: ClassVar[str] = ONLINE

    def network(self, network: Network) -> Network:
        """Add a second branch, which shares all weights."""
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
                "Expected a featurizer that sees every image by itself, for ITTA; found one with a context network, as "
                "ARM makes it, which the second branch does not have. Choose another algorithm, or leave ITTA out."
            )
        add_part(network, TWIN, Twin(network.features, blocks, widths[0], self.alpha))
        return network

    def penalty(self, model: Model, batch: Batch) -> Tensor:
        """Return R + ℓ(g(z'), y) of each domain, [K]."""
        z, twin = both_features(model, batch.x)
        consistency = apply_affine(consistency_layers(model.buffers), twin - z).square().mean((1, 2))
        return consistency + _classification(model, twin, batch.y)

    def start(self, state: State, problem: Problem) -> Tree:
        """Return the optimizer state of A."""
        if f"{TWIN}.weight" not in state.buffers:
            raise UsageError(
                "Expected a network that pogm builds, because ITTA adds weights to it; found your own module. "
                "Train it as a trial, for example with pogm run --with ITTA."
            )
        return Adam(RATE * _rate(problem)).init(consistency_layers(state.buffers))

    def after(self, memory: Tree, state: State, batches: list[Batch], problem: Problem) -> tuple[Tree, State]:
        """Take one step of A on the mismatch between the gradients of R and of the classification loss."""
        layers, rate = consistency_layers(state.buffers), RATE * _rate(problem)
        moved, memory = Adam(rate).update(layers, mismatch_gradient(layers, state, batches[-1], problem), memory)
        buffers = {f"{TWIN}.{name}": leaf for name, leaf in moved.items()}
        known = state.buffers[f"{TWIN}.rate"]
        buffers[f"{TWIN}.rate"] = (torch.zeros_like(known) + rate).to(known.dtype)
        return memory, state._replace(buffers=state.buffers | buffers)

    def predictor(self, predict: Predictor, model: Model) -> Predictor:
        """Return a predictor that adapts to each batch before predicting it."""
        return AdaptingPredictor(self.adaptation, predict, model) if self.adapts else predict


def mismatch_gradient(layers: Params, state: State, batch: Batch, problem: Problem) -> Params:
    """Return the gradient of 0.1 mean (û − v̂)² with respect to A.

    Let w be the gradient with respect to u. The result is the gradient of ⟨w, u⟩ with w constant. With the Jacobian J
    of z' − z with respect to φ, and r = ∂R/∂(z' − z), we have u = Jᵀr and ⟨w, u⟩ = ⟨Jw, r⟩. Only r depends on A, so
    second derivatives of the network are not needed. Jᵀr is linear in r, so Jw is the gradient of ⟨w, Jᵀr⟩ with respect
    to r.
    """
    state = state._replace(key=state.random_key(Purpose.MODIFIER, state.step))
    model = problem.model(state.params, state)
    weights = {name: leaf for name, leaf in state.params.items() if name.startswith("features.")}  # φ

    def features(weights: Params) -> tuple[Tensor, Tensor]:
        return both_features(problem.model(state.params | weights, state), batch.x)

    def consistency(gap: Tensor, layers: Params) -> Tensor:
        return apply_affine(layers, gap).square().mean()

    def classification(z: Tensor, twin: Tensor) -> Tensor:
        return (_classification(model, z, batch.y) + _classification(model, twin, batch.y)).mean()

    (z, twin), transposed = vjp(features, weights)
    r = grad(consistency)(twin - z, layers)
    u, forward = vjp(lambda r: _flat(*transposed((-r, r))), r)
    v = _flat(*transposed(grad(classification, argnums=(0, 1))(z, twin)))
    (change,) = forward(_mismatch_derivative(u, v))  # J w
    gradient: Params = grad(lambda layers: (change * grad(consistency)(twin - z, layers)).sum())(layers)
    return gradient


def _mismatch_derivative(u: Tensor, v: Tensor) -> Tensor:
    """Return the gradient of 0.1 mean (û − v̂)² with respect to u; zero if u or v is constant."""
    u_std, v_std = u.std(), v.std()
    difference = (u - u.mean()) / u_std - (v - v.mean()) / v_std
    return torch.where((u_std > 0) & (v_std > 0), 2 * WEIGHT * difference / (len(u) * u_std), 0.0)


def _classification(model: Model, z: Tensor, y: Tensor) -> Tensor:
    """Return ℓ(g(z), y) of each domain, [K]."""
    return model.loss(over_samples(model.head, z), y).mean(1)


def _rate(problem: Problem) -> Scalar:
    """Return the learning rate, or raise a `UsageError` if there are several."""
    rate: Scalar | None = getattr(problem.optimizer, "lr", None)
    if rate is None:
        raise UsageError(
            "Expected an algorithm with one learning rate for ITTA; found one with several. Choose another algorithm, "
            "or leave ITTA out."
        )
    return rate


def _flat(tree: Params) -> Tensor:
    return torch.cat([leaf.flatten() for leaf in tree.values()])
