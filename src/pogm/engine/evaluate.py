"""The accuracy on every domain and split, and the validation loss, in large batches."""

import itertools
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pogm.core import random
from pogm.core.state import Purpose, State
from pogm.engine.data import SPLITS, Rows
from pogm.engine.steps import Setting

PIXELS = {"cpu": 2**21, "cuda": 2**25}  # of a pass: on a CPU, what malloc takes from its heap and not from the system


def accuracies(setting: Setting, state: State, rows: Rows, segments: list[int], trials: int = 1) -> Tensor:
    """The share of images whose most likely class is the right one, segment by segment; ``trials`` share the memory."""
    return _means(lambda logits, y: logits.argmax(-1) == y, setting, state, rows, segments, trials)


def validation_loss(setting: Setting, state: State, rows: Rows, segments: list[int], trials: int = 1) -> Tensor:
    """The mean over training domains of the cross-entropy on their *out* part, as it is, without augmentation."""
    place, count = SPLITS.index("out"), len(SPLITS)
    trained = torch.stack([part[0] for part in torch.split(rows.trained, segments)[place::count]])
    held_back = torch.cat(torch.split(rows.evaluate, segments)[place::count])
    rows = rows._replace(evaluate=held_back, trained=torch.zeros_like(held_back, dtype=torch.bool))

    def losses(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none")

    means = _means(losses, setting, state, rows, segments[place::count], trials)
    return torch.where(trained, means, 0).sum() / trained.sum()


def _means(
    measure: Callable[[Tensor, Tensor], Tensor],
    setting: Setting,
    state: State,
    rows: Rows,
    segments: list[int],
    trials: int,
) -> Tensor:
    """The mean of a measure of logits and labels, segment by segment."""
    model = setting.problem.model(state.params, state)
    keys = random.split(state.random_key(Purpose.EVALUATION, state.step), len(rows.evaluate))  # one for each image
    parts = _parts(setting, rows.evaluate, segments, trials)
    whole = torch.split(rows.trained, [len(part) for part in parts])
    trained = _known(whole) if trials == 1 else whole
    firsts = set(itertools.accumulate(segments, initial=0)) if setting.predicts_by else {0}
    measured, seen = [], 0
    for number, images in enumerate(setting.table.images.passes(parts)):
        if seen in firsts:  # of a domain and split
            predict = setting.predictor(model)
        own, seen = keys[seen : seen + len(parts[number])], seen + len(parts[number])
        sizes = setting.table.sizes[parts[number]]
        x = setting.transform.for_evaluation(images, sizes, own, setting.dtype, trained[number])
        measured.append(measure(predict(x), setting.table.labels[parts[number]]))
    values = torch.split(torch.cat(measured).double(), segments)
    return torch.stack([value.mean() for value in values])


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
