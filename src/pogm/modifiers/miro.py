"""MIRO: mutual-information regularization with the pretrained features."""

import copy
import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Choice, Large, hyper
from pogm.core.model import Model, Network, over_samples
from pogm.core.problem import Problem
from pogm.core.state import State
from pogm.core.trees import Tree
from pogm.modifiers.base import Modifier, add_part, check_head_takes

PART = "miro"  # name of the part in the network
VARIANCE = 0.1  # initial variance of every channel
LEAST = 1e-5  # smallest variance
FASTER = 10  # learning rate of the variances, relative to that of the features
SIDE = 64  # height and width of the black image that is used to count the channels


@dataclass(frozen=True)
class MIRO(Modifier):
    r"""Mutual-information regularization (Cha et al., 2022): keep features close to those of the pretrained network.

    .. math:: L_k + \lambda \sum_l \tfrac12 \operatorname{mean} \Big[ \log \sigma_l^2
            + \frac{(z_l - z_l^0)^2}{\sigma_l^2} \Big], \qquad
        \sigma_l^2 = \operatorname{softplus}(b_l) + 10^{-5}

    :math:`z_l` are the feature maps of layer l, :math:`z_l^0` those of the same network with its initial weights, which
    never change, in evaluation mode. The variances :math:`\sigma_l^2`, one for each channel, are trained with the other
    weights and start at 0.1. The mean is over channels, positions and the samples of domain k. As in the code of the
    authors, the predicted mean of :math:`z_l^0` is :math:`z_l` itself, the layers are the stem and the blocks of a
    ResNet, and the variances have ten times the learning rate of the features. For a network that names no blocks, the
    only layer is the output of the featurizer. A step needs one more forward pass. The state contains a copy of the
    initial features.

    The larger learning rate is implemented by a scaled weight, b = 10 b'. With Adam this is the same, except for weight
    decay, which acts on b' (in the authors' code, on b). With SGD, b learns 100 times as fast, not ten times. The
    method is for pretrained networks: with random initial weights, it keeps the features close to random ones.

    Args:
        weight: Weight λ. The authors chose 0.01 for PACS and VLCS, and 0.1 for OfficeHome, TerraIncognita and
            DomainNet.
    """

    parallel_axes: ClassVar[tuple[str, ...]] = ("domains", "samples")

    weight: float = hyper(
        0.01, large=Large(0.01, Choice(0.001, 0.01, 0.1, 1.0)), least=0, draw_as="ld"
    )  # λ; no search on small images, whose networks are not pretrained

    def network(self, network: Network) -> Network:
        """Add the frozen features and the variances."""
        widths = [layer.in_features for layer in network.head.modules() if isinstance(layer, nn.Linear)]
        if not widths:
            raise UsageError(
                "Expected a network whose head is made of linear layers for MIRO; found "
                f"{type(network.head).__name__}. Choose another algorithm, or leave MIRO out."
            )
        add_part(network, PART, Pretrained(network.features, widths[0]))
        return network

    def risks(self, model: Model, batch: Batch) -> Tensor:
        """Return the risks plus the weighted distances, [K]."""
        found = over_samples(model.part(PART), batch.x)  # [K, B, n + 1]
        z, distances = found[..., :-1], found[..., -1]
        return model.loss(over_samples(model.head, z), batch.y).mean(1) + self.weight * distances.mean(1)

    def start(self, state: State, problem: Problem) -> Tree:
        """Return no memory; raise a `UsageError` if the variances are not trained."""
        if not any(name.startswith(f"{PART}.") for name in state.params):
            raise UsageError(
                "Expected to train the parts that MIRO adds to a network; found a Learner, which trains only its "
                "module. Train MIRO as a trial, for example with pogm run."
            )
        return {}


class Pretrained(nn.Module):
    """The initial features, which are frozen, and the variances. It computes the distance of the current features.

    The frozen weights are buffers, which no optimizer changes.
    """

    def __init__(self, features: nn.Module, width: int):
        super().__init__()
        self.width = width  # of the features
        stages, layers = _find_stages(features)
        self._stages = tuple(stages)  # in a tuple, so that the weights are not registered twice
        self._layers = tuple(layers)
        self.frozen = nn.ModuleList(_freeze(stage) for stage in stages[: layers[-1] + 1])
        first = math.log(math.expm1(VARIANCE - LEAST)) / FASTER
        counts = [width] if stages == [features] else self._count_channels()
        self.variances = nn.ParameterList([torch.full((count,), first) for count in counts])

    def train(self, mode: bool = True) -> "Pretrained":
        """Change the mode, except that of the frozen features, which stay in evaluation mode."""
        super().train(mode)
        self.frozen.eval()
        return self

    def forward(self, x: Tensor) -> Tensor:
        """Return the features and the distance of every sample: [N, n + 1]."""
        z, current = self._run(self._stages, x)
        check_head_takes(z, self.width, "MIRO")
        with torch.no_grad():
            _, initial = self._run(tuple(self.frozen), x)
        terms = [self._distance(*both) for both in zip(current, initial, self.variances, strict=True)]
        return torch.cat([z, torch.stack(terms).sum(0)[:, None]], 1)

    def _run(self, stages: tuple[nn.Module, ...], x: Tensor) -> tuple[Tensor, list[Tensor]]:
        """Return the output of the last stage, and those of all layers."""
        maps = []
        for index, stage in enumerate(stages):
            x = stage(x)
            if index in self._layers:
                maps.append(x)
        return x, maps

    @staticmethod
    def _distance(current: Tensor, initial: Tensor, scaled: Tensor) -> Tensor:
        """Return ½ mean [log σ² + (z − z⁰)² / σ²] over channels and positions: [N]."""
        variance = F.softplus(FASTER * scaled) + LEAST  # σ²
        squares = (current - initial).square()
        squares = squares.flatten(2).mean(2, dtype=variance.dtype) if squares.ndim > 2 else squares  # [N, C]
        return (squares / variance + variance.log()).mean(1) / 2

    def _count_channels(self) -> list[int]:
        """Return the number of channels of each layer, by a pass with a black image."""
        weight = next(layer.weight for layer in self.frozen.modules() if isinstance(layer, nn.Conv2d))
        image = weight.new_zeros(1, weight.shape[1], SIDE, SIDE)
        with torch.no_grad():
            return [found.shape[1] for found in self._run(tuple(self.frozen.eval()), image)[1]]


def _find_stages(features: nn.Module) -> tuple[list[nn.Module], list[int]]:
    """Return the stages of a featurizer, and the indices of the layers: the stem and the blocks.

    The featurizer is one stage if it is not a sequence that names its blocks.
    """
    blocks: tuple[str, ...] = getattr(features, "blocks", ())
    stages: dict[str, nn.Module] = {}

    def collect(module: nn.Module, path: str) -> None:
        divided = isinstance(module, nn.Sequential) and any(name.startswith(path) for name in blocks)
        if not divided or path.rstrip(".") in blocks:
            stages[path.rstrip(".")] = module
            return
        for name, child in module.named_children():
            collect(child, f"{path}{name}.")

    collect(features, "")
    if not blocks or not stages.keys() >= set(blocks):
        return [features], [0]
    layers = [list(stages).index(name) for name in blocks]
    stem = [layers[0] - 1] if layers[0] else []
    return list(stages.values()), stem + layers


def _freeze(stage: nn.Module) -> nn.Module:
    """Return a copy without hooks of other modifiers, with buffers in place of parameters."""
    frozen = copy.deepcopy(stage)
    for module in frozen.modules():
        module._forward_hooks.clear()
        for name, leaf in list(module.named_parameters(recurse=False)):
            delattr(module, name)
            module.register_buffer(name, leaf.detach())
    return frozen
