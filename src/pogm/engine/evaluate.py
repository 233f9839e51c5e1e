"""The accuracy on every domain and split, in large batches."""

import itertools
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from pogm.core import random
from pogm.core.state import Purpose, State
from pogm.engine.data import Rows
from pogm.engine.steps import Setting

PIXELS = {"cpu": 2**21, "cuda": 2**25}  # of a pass: on a CPU, what malloc takes from its heap and not from the system


def accuracies(setting: Setting, state: State, rows: Rows, segments: list[int], trials: int = 1) -> Tensor:
    """The share of images whose most likely class is the right one, segment by segment; ``trials`` share the memory."""
    model = setting.problem.model(state.params, state)
    key = state.random_key(Purpose.EVALUATION, state.step)
    parts = _parts(setting, rows.evaluate, segments, trials)
    whole = torch.split(rows.trained, [len(part) for part in parts])
    trained = _known(whole) if trials == 1 else whole
    firsts = set(itertools.accumulate(segments, initial=0)) if setting.predicts_by else {0}
    correct, seen = [], 0
    for number, images in enumerate(setting.table.images.passes(parts)):
        if seen in firsts:  # of a domain and split
            predict = setting.predictor(model)
        seen += len(parts[number])
        sizes = setting.table.sizes[parts[number]]
        x = setting.transform.for_evaluation(images, sizes, random.fold(key, number), setting.dtype, trained[number])
        logits = predict(x)
        correct.append(logits.argmax(-1) == setting.table.labels[parts[number]])
    shares = torch.split(torch.cat(correct).double(), segments)
    return torch.stack([share.mean() for share in shares])


def _parts(setting: Setting, rows: Tensor, segments: list[int], trials: int) -> Sequence[Tensor]:
    """The rows of each pass: as many as memory allows; or, if their company matters, some of one segment."""
    if setting.predicts_by:
        return [p for part in torch.split(rows, segments) for p in torch.split(part, setting.predicts_by)]
    pixels = max(shape[-2] * shape[-1] for shape in (setting.table.images.shape, setting.transform.shape))
    return torch.split(rows, max(PIXELS[rows.device.type] // (pixels * trials), 1))


def _known(parts: Sequence[Tensor]) -> list[Tensor | bool]:
    """One answer for a pass whose images all have the same: most of them, since domains come one after the other."""
    least, most = (torch.stack(ends).tolist() for ends in ([p.all() for p in parts], [p.any() for p in parts]))
    return [low if low == high else part for low, high, part in zip(least, most, parts, strict=True)]


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
