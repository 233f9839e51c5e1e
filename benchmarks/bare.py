"""Handwritten PyTorch training loops: the references and lower bounds (floors) of the benchmarks.

They use plain modules and ``torch.optim.Adam``, and no engine. From pogm they use only the solver of the K×K problem,
which is not compared.
"""

import copy
import math
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from pogm.pareto import solve

Minibatch = tuple[Tensor, Tensor]  # images [K, B, ...] and labels [K, B]


def network(name: str, shape: tuple[int, int, int], classes: int) -> nn.Module:
    """Return a network with our architecture and our order of weights. Batch norm keeps its statistics."""
    if name == "mlp":
        hidden = [nn.Linear(math.prod(shape), 128), nn.ReLU(), nn.Linear(128, 128), nn.ReLU()]
        return nn.Sequential(nn.Flatten(), *hidden, nn.Linear(128, classes))
    if name == "mnist_cnn":
        sizes = [(shape[0], 64, 1), (64, 128, 2), (128, 128, 1), (128, 128, 1)]
        blocks = [
            part
            for inputs, outputs, stride in sizes
            for part in (nn.Conv2d(inputs, outputs, 3, stride, 1), nn.ReLU(), nn.GroupNorm(8, outputs))
        ]
        return nn.Sequential(*blocks, nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(128, classes))
    from torchvision import models

    made: nn.Module = getattr(models, name)(num_classes=classes)
    return made.eval()


class Method(Protocol):
    """Interface of a handwritten training method."""

    def step(self, batches: list[Minibatch]) -> None:
        """Update the weights once."""


class Erm:
    """ERM: one pass over the pooled minibatch, one Adam."""

    def __init__(self, network: nn.Module, lr: float = 1e-3, autocast: torch.dtype | None = None):
        self.network, self.autocast = network, autocast
        self.optimizer = adam(network, lr)

    def step(self, batches: list[Minibatch]) -> None:
        (x, y), *_ = batches
        descend(self.network, self.optimizer, x.flatten(0, 1), y.flatten(), self.autocast)


class Pogm:
    """POGM: a copy of the network and an Adam for every domain, and the meta-update on flat vectors."""

    def __init__(
        self,
        network: nn.Module,
        domains: int,
        lr: float = 1e-3,
        autocast: torch.dtype | None = None,
        kappa: float = 0.5,
        meta_lr: float = 0.5,
    ):
        self.network, self.autocast, self.kappa, self.meta_lr = network, autocast, kappa, meta_lr
        self.copies = [copy.deepcopy(network) for _ in range(domains)]
        self.optimizers = [adam(one, lr) for one in self.copies]

    def step(self, batches: list[Minibatch]) -> None:
        weights = [weight.detach() for weight in self.network.parameters()]
        for k, (one, optimizer) in enumerate(zip(self.copies, self.optimizers, strict=True)):
            torch._foreach_copy_([weight.detach() for weight in one.parameters()], weights)
            for x, y in batches:
                descend(one, optimizer, x[k], y[k], self.autocast)
        with torch.no_grad():
            start = flat(weights)
            H = torch.stack([flat(one.parameters()) - start for one in self.copies])  # h_i: [K, P]
            shares = solve(H @ H.mT, self.kappa).weights.to(H.dtype)
            change = self.meta_lr * (shares @ H)
            pieces = change.split([weight.numel() for weight in weights])
            torch._foreach_add_(weights, [p.view_as(w) for p, w in zip(pieces, weights, strict=True)])


def flat(weights: Iterable[Tensor]) -> Tensor:
    """Return all weights as one vector. Unlike torch's function, it accepts channels-last weights."""
    return torch.cat([weight.flatten() for weight in weights])


def adam(network: nn.Module, lr: float) -> torch.optim.Adam:
    """Return torch's Adam; on a GPU fused, and capturable in a CUDA graph."""
    on_gpu = next(network.parameters()).is_cuda
    return torch.optim.Adam(network.parameters(), lr, fused=on_gpu or None, capturable=on_gpu)


def descend(
    network: nn.Module, optimizer: torch.optim.Optimizer, x: Tensor, y: Tensor, autocast: torch.dtype | None
) -> None:
    """Take one step of an optimizer."""
    optimizer.zero_grad()
    risk(network, x, y, autocast).backward()
    optimizer.step()


def risk(network: nn.Module, x: Tensor, y: Tensor, autocast: torch.dtype | None) -> Tensor:
    """Return the mean cross-entropy."""
    return F.cross_entropy(logits(network, x, autocast), y)


def logits(network: nn.Module, x: Tensor, autocast: torch.dtype | None) -> Tensor:
    """Return the logits in float32. Autocast's cache is off, because a CUDA graph must not outlive it."""
    if autocast is None:
        return network(x)
    with torch.autocast(x.device.type, autocast, cache_enabled=False):
        return network(x).float()


class Data:
    """Images [K, N, ...] as bytes on the device, and minibatches of them, drawn with replacement."""

    def __init__(self, K: int, N: int, shape: tuple[int, int, int], classes: int, device: torch.device):
        self.images = torch.randint(0, 256, (K, N, *shape), dtype=torch.uint8, device=device)
        self.labels = torch.randint(0, classes, (K, N), device=device)
        self.domain = torch.arange(K, device=device)[:, None]

    def draw(self, size: int) -> Minibatch:
        """Draw ``size`` images of each domain, with values in [0, 1]."""
        rows = torch.randint(0, self.labels.shape[1], (len(self.labels), size), device=self.labels.device)
        return self.images[self.domain, rows].float() / 255, self.labels[self.domain, rows]


def loop(method: Method, data: Data, size: int, minibatches: int = 1) -> Callable[[], None]:
    """Return a function that draws minibatches and takes a step."""
    return lambda: method.step([data.draw(size) for _ in range(minibatches)])


def evaluation(network: nn.Module, data: Data, size: int, autocast: torch.dtype | None) -> Callable[[], Tensor]:
    """Return a function that counts the correctly predicted images, ``size`` at a time."""
    images, labels = data.images.flatten(0, 1), data.labels.flatten()

    def count() -> Tensor:
        with torch.no_grad():
            parts = zip(images.split(size), labels.split(size), strict=True)
            right = [(logits(network, x.float() / 255, autocast).argmax(1) == y).sum() for x, y in parts]
            return torch.stack(right).sum()

    return count


def gradient(
    network: nn.Module, images: int, size: int, classes: int, autocast: torch.dtype | None, compiled: bool
) -> Callable[[], tuple[Tensor, ...]]:
    """Return a function that computes the gradient of one minibatch of noise. It draws and updates nothing."""
    weights = list(network.parameters())
    x = torch.randn(images, 3, size, size, device=weights[0].device).to(memory_format=torch.channels_last)
    y = torch.arange(images, device=x.device) % classes

    def loss(x: Tensor, y: Tensor) -> Tensor:
        return risk(network, x, y, autocast)

    taken = torch.compile(loss, dynamic=False) if compiled else loss
    return lambda: torch.autograd.grad(taken(x, y), weights)


def bandwidth_copy(count: int, device: torch.device) -> tuple[Callable[[], Tensor], int]:
    """Return a function that copies ``count`` float32 numbers, and the number of bytes that it reads and writes."""
    source = torch.zeros(count, device=device)
    target = torch.empty_like(source)
    return lambda: target.copy_(source), 2 * source.nbytes


@contextmanager
def precision(name: str) -> Iterator[torch.dtype | None]:
    """Set TF32 according to the precision, and let cuDNN choose the fastest kernels. Yield the dtype for autocast."""
    if not torch.cuda.is_available():
        yield torch.bfloat16 if name == "bf16" else None
        return
    cudnn, matmul = torch.backends.cudnn, torch.backends.cuda.matmul
    before = cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark
    cudnn.allow_tf32 = matmul.allow_tf32 = name != "fp32"
    cudnn.deterministic, cudnn.benchmark = False, True
    try:
        yield torch.bfloat16 if name == "bf16" else None
    finally:
        cudnn.allow_tf32, matmul.allow_tf32, cudnn.deterministic, cudnn.benchmark = before
