"""CIRL: causality-inspired representation learning."""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, Power, hyper
from pogm.core.model import Model, Network, over_samples
from pogm.core.optimizers import SGD, Adam
from pogm.core.problem import Problem
from pogm.core.random_layers import RandomLayer
from pogm.core.state import Loss, State
from pogm.core.trees import Params, Tree
from pogm.data.transforms.photographs import to_inputs, to_pixels
from pogm.modifiers.base import Modifier, add_part, check_head_takes

INDEPENDENCE = 0.005  # weight of the correlations of different features
EPS = 1e-6  # added to standard deviations
TEMPERATURE = 0.5  # of the Gumbel softmax
DROPPED = 0.5  # dropout probability of the masker, for its inputs and its first hidden layer
FASTER = 10  # learning rate of the masker, relative to that of the features
MASKER_STREAM = -1  # random stream of the update of the masker, separate from those of `Purpose`


@dataclass(frozen=True)
class CIRL(Modifier):
    r"""Causality-inspired representation learning (Lv et al., 2022): invariant, independent and informative features.

    Every image gets a twin with the same phase spectrum and a mixture of its amplitudes and those of another image. A
    masker m selects the features that are informative about the class; an adversary head :math:`g_{ad}` predicts the
    class from the other features. The risk is

    .. math:: \tfrac12 \ell(g(z \odot m), y) + \tfrac12 \ell(g_{ad}(z \odot (1 - m)), y) + w(t) F, \qquad
        F = \tfrac1n \sum_i (C_{ii} - 1)^2 + \tfrac{0.005}{n (n - 1)} \sum_{i \neq j} C_{ij}^2,

    where C are the correlations of the features of images with those of their twins, over all images of a pass, and
    :math:`w(t) = w e^{-5 (1 - t / T)^2}` until minibatch T, then w. Nothing is masked in the first ``warmup_steps``
    minibatches. After every step of the algorithm, the masker takes one step on the last minibatch of all domains to
    minimise :math:`\tfrac12 \ell(g(z \odot m)) - \tfrac12 \ell(g_{ad}(z \odot (1 - m)))`. Prediction uses neither the
    mask nor the adversary.

    As in the code of the authors, a mask is the maximum over a chain of Gumbel softmaxes; each has the previous result
    as its logits, so the chain cannot be vectorised. Its length is ``mask_percent`` of the number of features: 77 for
    128 features and 1229 for 2048 (authors: 1228). The step of the masker keeps all of them in memory for its gradient.
    Differences from the code of the authors: the optimizer of the algorithm trains both heads with the learning rate of
    the features, not ten times this rate; twins come from the minibatch and are not rounded to bytes; the masker has no
    biases, because the batch norm after them would remove them. The weights of the masker are buffers of the network,
    so no optimizer applies weight decay to them. With POGM, the trajectories include features and head; the adversary
    moves with the same weights, and all domains share one masker.

    Args:
        weight: Weight w of F.
        mask_percent: Percentage of the features in the length of the chain, which is about the number selected.
        ramp_steps: T, the number of minibatches until w is reached (default: a tenth of the 5001 of DomainBed).
        warmup_steps: Number of minibatches without masks (authors: 12% of training).
        masker_width: Hidden units of the masker per feature; 4 gives 24 weights for each pair of features.
    """

    weight: float = hyper(5.0, Power(10, -1, 1), least=0, draw_as="cirl_lambda")  # w
    mask_percent: int = hyper(60, Choice(50, 60, 80), least=1, most=100, draw_as="cirl_mask_ratio")
    ramp_steps: int = hyper(500, least=1)  # T
    warmup_steps: int = hyper(600, least=0)
    masker_width: int = hyper(4, least=1, most=64)

    def network(self, network: Network) -> Network:
        """Add an adversary, with the architecture of the head, and a masker."""
        layers = [layer for layer in network.head.modules() if isinstance(layer, nn.Linear)]
        if not layers:
            raise UsageError(
                "Expected a network whose head is made of linear layers for CIRL; found "
                f"{type(network.head).__name__}. Choose another algorithm, or leave CIRL out."
            )
        width = layers[0].in_features
        adversary = copy.deepcopy(network.head)
        for layer in adversary.modules():
            if isinstance(layer, nn.Linear):
                layer.reset_parameters()
        add_part(network, "adversary", adversary)
        add_part(network, "masker", Masker(width, self.masker_width * width, -(-self.mask_percent * width // 100)))
        return network

    def batch(self, batch: Batch, key: Tensor, num_classes: int) -> Batch:
        """Return the images of each domain followed by their twins: [K, 2B, ...]. Partners come from all domains."""
        if batch.x.ndim != 5:
            raise UsageError(
                f"Expected images [K, B, C, H, W] for CIRL; found {list(batch.x.shape)}. Leave CIRL out for other data."
            )
        pixels = to_pixels(batch.x).flatten(0, 1)
        partner = random.permutation(random.fold(key, 0), len(pixels))
        share = random.uniform(random.fold(key, 1), (len(pixels), 1, 1, 1)).to(pixels.dtype)
        twins = to_inputs(mix_amplitudes(pixels, pixels[partner], share).clamp(0, 1)).view(batch.x.shape)
        return Batch(torch.cat([batch.x, twins], 1), torch.cat([batch.y, batch.y], 1))

    def risks(self, model: Model, batch: Batch) -> Tensor:
        """Return the risks of both heads plus w(t) F, [K]."""
        z = over_samples(model.features, batch.x)  # [K, 2B, n]
        check_head_takes(z, model.buffers["masker.weight0"].shape[-1], "CIRL")
        with torch.no_grad():
            mask = over_samples(model.part("masker"), z.detach())
        minibatches = model.buffers["masker.seen"]
        early = minibatches < self.warmup_steps
        head, adversary = _both_losses(
            model, z, torch.where(early, 1.0, mask), torch.where(early, 1.0, 1 - mask), batch.y
        )  # [K]
        originals, twins = (half.flatten(0, 1) for half in z.chunk(2, 1))
        time = (minibatches.to(z.dtype) / self.ramp_steps).clamp(max=1)
        weight = self.weight * torch.exp(-5 * (1 - time) ** 2)
        return head / 2 + adversary / 2 + weight * factorization_loss(originals, twins)

    def start(self, state: State, problem: Problem) -> Tree:
        """Return the optimizer state of the masker."""
        if not any(name.startswith("adversary.") for name in state.params):
            raise UsageError(
                "Expected to train the parts that CIRL adds to a network; found a Learner, which trains only its "
                "module. Train CIRL as a trial, for example with pogm run."
            )
        return {"optimizer": _masker_optimizer(problem).init(_masker_weights(state))}

    def after(self, memory: Tree, state: State, batches: list[Batch], problem: Problem) -> tuple[Tree, State]:
        """Take one step of the masker: decrease the loss of the head and increase that of the adversary."""
        batch = batches[-1]
        masker_state = state._replace(
            key=random.fold(state.key, MASKER_STREAM)
        )  # random numbers that no step of the algorithm uses
        z = over_samples(problem.model(state.params, masker_state).features, batch.x).detach()

        def objective(weights: Params) -> Loss:
            model = problem.model(state.params, masker_state._replace(buffers=state.buffers | weights))
            mask = over_samples(model.part("masker"), z)
            head, adversary = _both_losses(model, z, mask, 1 - mask, batch.y)
            return Loss((head / 2 - adversary / 2).mean())

        weights = _masker_weights(state)
        gradient, _ = problem.gradient(objective)(weights)
        updated, optimizer = _masker_optimizer(problem).update(weights, gradient, memory["optimizer"])
        count = {"masker.seen": state.buffers["masker.seen"] + len(batches)}
        return {"optimizer": optimizer}, state._replace(buffers=state.buffers | updated | count)


class Masker(RandomLayer):
    """Maps features to masks in [0, 1]: three linear layers with batch norm, then a chain of Gumbel softmaxes."""

    trained = ("weight0", "scale0", "shift0", "weight1", "scale1", "shift1", "weight2")

    def __init__(self, width: int, hidden: int, choices: int):
        super().__init__()
        self.choices = choices
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))  # minibatches in earlier steps
        for index, (inputs, outputs) in enumerate(((width, hidden), (hidden, hidden), (hidden, width))):
            self.register_buffer(f"weight{index}", nn.Linear(inputs, outputs, bias=False).weight.detach())
            if index < 2:
                self.register_buffer(f"scale{index}", torch.ones(outputs))
                self.register_buffer(f"shift{index}", torch.zeros(outputs))

    def forward(self, z: Tensor) -> Tensor:
        """Return a mask for features [N, n]; each softmax selects about one feature."""
        for index in range(2):
            kept = random.uniform(random.fold(self.key, index), tuple(z.shape)) >= DROPPED
            affine = self.get_buffer(f"scale{index}"), self.get_buffer(f"shift{index}")
            z = self._layer(index, z * kept / (1 - DROPPED), *affine).relu()
        chosen = self._layer(2, z)
        mask = torch.zeros_like(chosen)
        for number in range(self.choices):
            noise = random.uniform(random.fold(self.key, 2 + number), tuple(chosen.shape))
            exponential = (-torch.log1p(-noise)).to(chosen.dtype).clamp(min=2.0**-54)
            chosen = ((chosen - exponential.log()) / TEMPERATURE).softmax(-1)  # −log of an exponential is Gumbel
            mask = torch.maximum(mask, chosen)
        return mask

    def _layer(self, index: int, z: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
        """Apply a linear layer and a batch norm with the statistics of the current pass."""
        outputs = F.linear(z, self.get_buffer(f"weight{index}"))
        return F.batch_norm(outputs, None, None, scale, shift, training=True)


def mix_amplitudes(images: Tensor, others: Tensor, share: Tensor) -> Tensor:
    """Return images [N, C, H, W] with their phases, and with amplitudes interpolated towards those of the others."""
    spectrum = torch.fft.rfft2(images)
    amplitude = torch.lerp(spectrum.abs(), torch.fft.rfft2(others).abs(), share)
    mixed = torch.polar(amplitude, spectrum.angle())
    result: Tensor = torch.fft.irfft2(mixed, s=images.shape[-2:])
    return result


def factorization_loss(originals: Tensor, twins: Tensor) -> Tensor:
    """Return F: the distance of the correlations C between features [N, n] and those of their twins from identity."""
    count, width = originals.shape
    if count < 2:
        raise UsageError("Expected two images or more in every pass for CIRL; found one. Set a larger batch_size.")
    first, second = ((z - z.mean(0)) / (_standard_deviation(z) + EPS) for z in (originals, twins))
    correlation = first.mT @ second / count
    same = correlation.diagonal()
    different = (correlation.square().sum() - same.square().sum()) / max(width * (width - 1), 1)
    return (same - 1).square().mean() + INDEPENDENCE * different


def _standard_deviation(z: Tensor) -> Tensor:
    """Return the standard deviation; unlike that of torch, it has a second derivative at zero, which IDGM needs."""
    variance = z.var(0)
    return torch.where(variance > 0, torch.where(variance > 0, variance, 1.0).sqrt(), 0.0)


def _both_losses(model: Model, z: Tensor, mask: Tensor, rest: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Return the risks [K] of the head with the features of ``mask``, and of the adversary with those of ``rest``."""
    head = model.loss(over_samples(model.head, z * mask), y).mean(1)
    adversary = model.loss(over_samples(model.part("adversary"), z * rest), y).mean(1)
    return head, adversary


def _masker_weights(state: State) -> Params:
    return {f"masker.{name}": state.buffers[f"masker.{name}"] for name in Masker.trained}


def _masker_optimizer(problem: Problem) -> Adam:
    rates = problem.optimizer
    if not isinstance(rates, Adam | SGD):
        raise UsageError(
            f"Expected an algorithm with one learning rate for CIRL; found {type(rates).__name__}. "
            "Choose another algorithm, or leave CIRL out."
        )
    return Adam(FASTER * rates.lr, rates.weight_decay)
