"""CIRL: features that an intervention on the image does not change, each of them of use."""

import copy
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, Power, hyper
from pogm.core.model import Model, Network, cross_entropy, over_samples
from pogm.core.optimizers import SGD, Adam
from pogm.core.problem import Problem
from pogm.core.random_layers import RandomLayer
from pogm.core.state import Loss, State
from pogm.core.trees import Params, Tree
from pogm.data.transforms.ranges import to_inputs, to_pixels
from pogm.modifiers.base import Modifier, add_part, check_head_takes

INDEPENDENCE = 0.005  # weight of what correlates different features
EPS = 1e-6  # joins a deviation
TEMPERATURE = 0.5  # of a soft choice
DROPPED = 0.5  # of the masker's inputs, and of its first hidden layer
FASTER = 10  # the masker's learning rate, over the features'
APART = -1  # the stream of the masker's own step, beside those of the purposes


@dataclass(frozen=True)
class CIRL(Modifier):
    r"""Causality-inspired representation learning (Lv et al., 2022): features invariant, independent and used.

    Every image gets a twin: its phase spectrum with a mixture of its own amplitudes and another image's. A masker m
    picks the features that tell the class; what it leaves out has to tell it too, to an adversary head. The risk
    becomes

    .. math:: \tfrac12 \ell(g(z \odot m), y) + \tfrac12 \ell(g_{ad}(z \odot (1 - m)), y) + w(t) F, \qquad
        F = \tfrac1n \sum_i (C_{ii} - 1)^2 + \tfrac{0.005}{n (n - 1)} \sum_{i \neq j} C_{ij}^2,

    where C correlates the features of images with those of their twins, over all images of a pass, and
    :math:`w(t) = w e^{-5 (1 - t / T)^2}` until minibatch T. For the first ``warmup_steps`` minibatches nothing is
    masked. After every round the masker takes one step of its own, on the last minibatch of all domains, down
    :math:`\tfrac12 \ell(g(z \odot m)) - \tfrac12 \ell(g_{ad}(z \odot (1 - m)))`. Prediction uses neither mask nor
    adversary.

    Like the authors' code, a mask is the largest of a chain of soft choices, each of which has the one before as its
    logits: ``mask_percent`` of the number of features, one after the other, which no vector can replace. So a mask of
    128 features takes 77 softmaxes, and one of 2048 takes 1229 (the authors: 1228), all of which the masker's step
    keeps for its gradient. Where we leave the authors' code: the algorithm's optimizer trains both heads, at the rate
    of the features, not ten times as fast; twins come from the minibatch and are not rounded to bytes; the masker has
    no biases, which the batch norm after them would take away. Its weights are buffers of the network, so that no
    optimizer decays them. POGM matches the trajectories of features and head; the adversary moves with the same
    weights, and the masker is one for all domains.
    """

    weight: float = hyper(5.0, Power(10, -1, 1), least=0, draw_as="cirl_lambda")  # w
    mask_percent: int = hyper(60, Choice(50, 60, 80), least=1, most=100, draw_as="cirl_mask_ratio")  # of features
    ramp_steps: int = hyper(500, least=1)  # T, in minibatches: a tenth of DomainBed's 5001
    warmup_steps: int = hyper(600, least=0)  # without masks: 12% of them
    masker_width: int = hyper(4, least=1)  # hidden units for each feature; 24 weights of each pair of features

    def network(self, network: Network) -> Network:
        """The network with an adversary, a head like its own, and a masker."""
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
        """Twice as many images of each domain: the originals, then their twins. Partners come from all domains."""
        if batch.x.ndim != 5:
            raise UsageError(
                f"Expected images [K, B, C, H, W] for CIRL; found {list(batch.x.shape)}. Leave CIRL out for other data."
            )
        pixels = to_pixels(batch.x).flatten(0, 1)
        partner = random.permutation(random.fold(key, 0), len(pixels))
        share = random.uniform(random.fold(key, 1), (len(pixels), 1, 1, 1)).to(pixels.dtype)
        twins = to_inputs(amplitudes_mixed(pixels, pixels[partner], share).clamp(0, 1)).view(batch.x.shape)
        return Batch(torch.cat([batch.x, twins], 1), torch.cat([batch.y, batch.y], 1))

    def risks(self, model: Model, batch: Batch) -> Tensor:
        """Both heads' risks, and what the features of twins lack in invariance and independence."""
        z = over_samples(model.features, batch.x)  # [K, 2B, n]
        check_head_takes(z, model.buffers["masker.weight0"].shape[-1], "CIRL")
        with torch.no_grad():
            mask = over_samples(model.part("masker"), z.detach())
        seen = model.buffers["masker.seen"]
        early = seen < self.warmup_steps
        kept, rest = _both_losses(
            model, z, torch.where(early, 1.0, mask), torch.where(early, 1.0, 1 - mask), batch.y
        )  # [K]
        originals, twins = (half.flatten(0, 1) for half in z.chunk(2, 1))
        time = (seen.to(z.dtype) / self.ramp_steps).clamp(max=1)
        weight = self.weight * torch.exp(-5 * (1 - time) ** 2)
        return kept / 2 + rest / 2 + weight * factorization(originals, twins)

    def start(self, state: State, problem: Problem) -> Tree:
        """The masker's optimizer."""
        if not any(name.startswith("adversary.") for name in state.params):
            raise UsageError(
                "Expected to train the parts that CIRL adds to a network; found a Learner, which trains its module "
                "alone. Train CIRL as a trial, for example with pogm run."
            )
        return {"optimizer": _optimizer(problem).init(_masker(state))}

    def after(self, memory: Tree, state: State, batches: list[Batch], problem: Problem) -> tuple[Tree, State]:
        """One step of the masker: towards features that tell the class, away from those that tell the adversary."""
        batch = batches[-1]
        apart = state._replace(key=random.fold(state.key, APART))  # a mask that no step of the algorithm draws
        z = over_samples(problem.model(state.params, apart).features, batch.x).detach()

        def objective(weights: Params) -> Loss:
            model = problem.model(state.params, apart._replace(buffers=state.buffers | weights))
            mask = over_samples(model.part("masker"), z)
            kept, rest = _both_losses(model, z, mask, 1 - mask, batch.y)
            return Loss((kept / 2 - rest / 2).mean())

        weights = _masker(state)
        gradient, _ = problem.gradient(objective)(weights)
        moved, optimizer = _optimizer(problem).update(weights, gradient, memory["optimizer"])
        seen = {"masker.seen": state.buffers["masker.seen"] + len(batches)}
        return {"optimizer": optimizer}, state._replace(buffers=state.buffers | moved | seen)


class Masker(RandomLayer):
    """Features to masks in [0, 1]: three layers of batch norm, and a chain of soft choices among the features."""

    trained = ("weight0", "scale0", "shift0", "weight1", "scale1", "shift1", "weight2")

    def __init__(self, width: int, hidden: int, choices: int):
        super().__init__()
        self.choices = choices
        self.register_buffer("seen", torch.zeros((), dtype=torch.int64))  # minibatches, in the rounds before
        for place, (inputs, outputs) in enumerate(((width, hidden), (hidden, hidden), (hidden, width))):
            self.register_buffer(f"weight{place}", nn.Linear(inputs, outputs, bias=False).weight.detach())
            if place < 2:
                self.register_buffer(f"scale{place}", torch.ones(outputs))
                self.register_buffer(f"shift{place}", torch.zeros(outputs))

    def forward(self, z: Tensor) -> Tensor:
        """A mask for each of the features [N, n]: each choice adds about one feature to it."""
        for place in range(2):
            kept = random.uniform(random.fold(self.key, place), tuple(z.shape)) >= DROPPED
            affine = self.get_buffer(f"scale{place}"), self.get_buffer(f"shift{place}")
            z = self._layer(place, z * kept / (1 - DROPPED), *affine).relu()
        chosen = self._layer(2, z)
        mask = torch.zeros_like(chosen)
        for number in range(self.choices):
            noise = random.uniform(random.fold(self.key, 2 + number), tuple(chosen.shape))
            exponential = (-torch.log1p(-noise)).to(chosen.dtype).clamp(min=2.0**-54)
            chosen = ((chosen - exponential.log()) / TEMPERATURE).softmax(-1)  # minus its logarithm is a Gumbel number
            mask = torch.maximum(mask, chosen)
        return mask

    def _layer(self, place: int, z: Tensor, scale: Tensor | None = None, shift: Tensor | None = None) -> Tensor:
        """A linear layer and a batch norm, which always uses the statistics of the pass."""
        outputs = F.linear(z, self.get_buffer(f"weight{place}"))
        return F.batch_norm(outputs, None, None, scale, shift, training=True)


def amplitudes_mixed(images: Tensor, others: Tensor, share: Tensor) -> Tensor:
    """Images [N, C, H, W] with a share of the others' amplitudes in place of their own, and their own phases."""
    spectrum = torch.fft.rfft2(images)
    amplitude = torch.lerp(spectrum.abs(), torch.fft.rfft2(others).abs(), share)
    mixed = torch.polar(amplitude, spectrum.angle())
    result: Tensor = torch.fft.irfft2(mixed, s=images.shape[-2:])
    return result


def factorization(originals: Tensor, twins: Tensor) -> Tensor:
    """How far the correlations of features [N, n] with their twins' are from one for like and zero for unlike ones."""
    count, width = originals.shape
    if count < 2:
        raise UsageError("Expected two images or more in every pass for CIRL; found one. Set a larger batch_size.")
    first, second = ((z - z.mean(0)) / (_deviation(z) + EPS) for z in (originals, twins))
    correlation = first.mT @ second / count
    like = correlation.diagonal()
    unlike = (correlation.square().sum() - like.square().sum()) / max(width * (width - 1), 1)
    return (like - 1).square().mean() + INDEPENDENCE * unlike


def _deviation(z: Tensor) -> Tensor:
    """The standard deviation; torch's own has no second derivative at zero, which a method may take (IDGM)."""
    variance = z.var(0)
    return torch.where(variance > 0, torch.where(variance > 0, variance, 1.0).sqrt(), 0.0)


def _both_losses(model: Model, z: Tensor, mask: Tensor, rest: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """The head's risks [K] on one part of the features, the adversary's on the other."""
    head = cross_entropy(over_samples(model.head, z * mask), y).mean(1)
    adversary = cross_entropy(over_samples(model.part("adversary"), z * rest), y).mean(1)
    return head, adversary


def _masker(state: State) -> Params:
    return {f"masker.{name}": state.buffers[f"masker.{name}"] for name in Masker.trained}


def _optimizer(problem: Problem) -> Adam:
    rates = problem.optimizer
    if not isinstance(rates, Adam | SGD):
        raise UsageError(
            f"Expected an algorithm with one learning rate for CIRL; found {type(rates).__name__}. "
            "Choose another algorithm, or leave CIRL out."
        )
    return Adam(FASTER * rates.lr, rates.weight_decay)
