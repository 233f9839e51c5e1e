"""The accuracy on every domain and split, and the validation loss, in large batches."""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pogm.core import random
from pogm.core.state import Purpose, State
from pogm.distributed.process_group import ProcessGroup
from pogm.engine.sampling import SPLITS, SampleIndices
from pogm.engine.vectorise import TrainConfig

PIXELS = {"cpu": 2**21, "cuda": 2**25}  # of a pass: on a CPU, what malloc takes from its heap and not from the system
BYTES = 2**11  # of a GPU's memory for a pixel: 128 channels in float32, four times


def accuracies(config: TrainConfig, state: State, rows: SampleIndices, segments: list[int], trials: int = 1) -> Tensor:
    """The share of images whose most likely class is the right one, segment by segment; ``trials`` share the memory."""
    return _means(lambda logits, y: logits.argmax(-1) == y, config, state, rows, segments, trials)


def validation_loss(
    config: TrainConfig, state: State, rows: SampleIndices, segments: list[int], trials: int = 1
) -> Tensor:
    """The mean over training domains of the cross-entropy on their *out* part, as it is, without augmentation."""
    place, count = SPLITS.index("out"), len(SPLITS)
    trained = torch.stack([part[0] for part in torch.split(rows.trained, segments)[place::count]])
    held_back = torch.cat(torch.split(rows.evaluate, segments)[place::count])
    rows = rows._replace(evaluate=held_back, trained=torch.zeros_like(held_back, dtype=torch.bool))

    def losses(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none")

    means = _means(losses, config, state, rows, segments[place::count], trials)
    return torch.where(trained, means, 0).sum() / trained.sum()


def _means(
    measure: Callable[[Tensor, Tensor], Tensor],
    config: TrainConfig,
    state: State,
    rows: SampleIndices,
    segments: list[int],
    trials: int,
) -> Tensor:
    """The mean of a measure of logits and labels, segment by segment."""
    model = config.problem.model(state.params, state)
    sizes = _sizes(config, len(rows.evaluate), segments, trials)
    rows = _filled(rows, sum(sizes))
    keys = random.split(state.random_key(Purpose.EVALUATION, state.step), len(rows.evaluate))  # one for each image
    parts, whole = torch.split(rows.evaluate, sizes), torch.split(rows.trained, sizes)
    trained = _known(whole) if trials == 1 else whole
    firsts = set(itertools.accumulate(segments, initial=0)) if config.predicts_by else {0}
    starts = list(itertools.accumulate(sizes, initial=0))
    everyone = None if config.predicts_by else config.everyone  # the processes to share passes with
    mine = range(len(parts)) if everyone is None else range(everyone.place, len(parts), len(everyone.members))
    measured: list[Tensor] = []
    passes = config.table.images.passes([parts[n] for n in mine]) if mine else ()
    for number, images in zip(mine, passes, strict=True):
        if starts[number] in firsts or not measured:  # of a domain and split
            predict = config.predictor(model)
        own = keys[starts[number] : starts[number + 1]]
        before = config.table.sizes[parts[number]]
        x = config.transform.for_evaluation(images, before, own, config.dtype, trained[number])
        measured.append(measure(predict(x), config.table.labels[parts[number]]))
    all_gather = torch.cat(measured) if everyone is None else _everyones(everyone, measured, parts)
    values = torch.split(all_gather[: sum(segments)].double(), segments)
    return torch.stack([value.mean() for value in values])


def _everyones(everyone: ProcessGroup, measured: list[Tensor], parts: Sequence[Tensor]) -> Tensor:
    """What all processes measured, in the order of the passes, which all have one size."""
    rounds = math.ceil(len(parts) / len(everyone.members))
    mine = parts[0].new_zeros((rounds, len(parts[0])), dtype=torch.float64)
    for place, values in enumerate(measured):
        mine[place] = values
    return everyone.gather(mine).transpose(0, 1).flatten()


def _sizes(config: TrainConfig, count: int, segments: list[int], trials: int) -> list[int]:
    """How many images each pass has: as many as memory allows; or, if their company matters, some of one segment.

    All passes have one size, so that the network is compiled for one.
    """
    if config.predicts_by:
        return [len(part) for size in segments for part in torch.split(torch.empty(size), config.predicts_by)]
    pixels = max(shape[-2] * shape[-1] for shape in (config.table.images.shape, config.transform.shape))
    most = max(_pixels(config.table.labels.device) // (pixels * trials), 1)
    passes = math.ceil(count / most)
    return [math.ceil(count / passes)] * passes


def _pixels(device: torch.device) -> int:
    """Of a pass; fewer on a small GPU. What is free would not do: a run that goes on would have to find as much."""
    most = PIXELS[device.type]
    return min(most, torch.cuda.get_device_properties(device).total_memory // BYTES) if device.type == "cuda" else most


def _filled(rows: SampleIndices, count: int) -> SampleIndices:
    """As many rows as the passes have, with the last again and again; what is measured of these is left out."""
    missing = count - len(rows.evaluate)
    parts = [torch.cat([part, part[-1:].expand(missing)]) for part in (rows.evaluate, rows.trained)] if missing else []
    return rows._replace(evaluate=parts[0], trained=parts[1]) if missing else rows


def _known(parts: Sequence[Tensor]) -> list[Tensor | bool]:
    """One answer for a pass whose images all have the same: most of them, since domains come one after the other."""
    least, most = (torch.stack(ends).tolist() for ends in ([p.all() for p in parts], [p.any() for p in parts]))
    return [low if low == high else part for low, high, part in zip(least, most, parts, strict=True)]
