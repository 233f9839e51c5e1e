"""The accuracy on every domain and split, in large batches."""

from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pogm.core.state import State
from pogm.engine.data import Rows, pixels
from pogm.engine.steps import Setting

LARGE = 4096  # images a pass


def accuracies(setting: Setting, state: State, rows: Rows, segments: list[int], size: int = LARGE) -> Tensor:
    """The share of images whose most likely class is the right one, segment by segment; ``size`` images a pass."""
    model = setting.problem.model(state.params, state)
    correct = []
    for part in torch.split(rows.evaluate, size):
        logits = setting.algorithm.predict(model, pixels(setting.table.images[part], setting.dtype))
        correct.append(logits.argmax(-1) == setting.table.labels[part])
    shares = torch.split(torch.cat(correct).double(), segments)
    return torch.stack([share.mean() for share in shares])


@contextmanager
def evaluating(network: nn.Module) -> Iterator[None]:
    """The network in evaluation mode, and without gradients, for a while."""
    modes = {module: module.training for module in network.modules()}
    network.eval()
    try:
        with torch.no_grad():
            yield
    finally:
        for module, training in modes.items():
            module.training = training
