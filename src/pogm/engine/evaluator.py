"""Evaluation: scores on every domain and split, the validation loss, and logits, in large batches."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor

from pogm.core import random
from pogm.core.model import Model
from pogm.core.state import Purpose, State
from pogm.data.transforms.base import Statistics
from pogm.distributed.world import ProcessGroup
from pogm.engine.sampling import SPLITS, TARGET_SCALE, SampleIndices, denormalise_outputs, normalise_targets
from pogm.engine.vectorise import TrainConfig

PIXELS = {"cpu": 2**21, "cuda": 2**25}  # most pixels of a pass; on a CPU, small enough that malloc reuses its heap
PASSES = 8  # least number of passes over all samples, if only some segments are evaluated
BYTES = 2**11  # GPU memory per pixel: four tensors of 128 channels in float32
SCORES = {"classification": ("accuracy",), "regression": ("r2", "rmse", "mae")}  # by task; the first one selects


class Part(NamedTuple):
    """Some of the samples of a trial."""

    positions: Tensor  # among all samples of the trial; the random numbers of a sample depend on its position
    pass_size: int  # number of samples of a pass


def scores(
    config: TrainConfig,
    state: State,
    sample_indices: SampleIndices,
    segments: list[int],
    trials: int = 1,
    part: Part | None = None,
) -> Tensor:
    """Return the scores of the task on each segment, [scores, segments]; see `SCORES` for their names.

    The errors of a regression are in the unit of the targets. R² is undefined, NaN, if all targets of a segment are
    equal.

    Args:
        config: Configuration of the trial.
        state: State to evaluate.
        sample_indices: Sample indices of the trial.
        segments: Number of samples in each domain and split.
        trials: Number of trials that are evaluated at once and share the memory.
        part: The samples, if they are not all samples of the trial.
    """
    arguments = (config, state, sample_indices, segments, trials)
    if config.problem.loss.targets == "classes":
        return _means(lambda logits, y: logits.argmax(-1) == y, *arguments, part=part)[None]
    statistics = sample_indices.statistics

    def measure(outputs: Tensor, y: Tensor) -> Tensor:
        y = normalise_targets(y, statistics).double()
        error = outputs.squeeze(-1).double() - y
        return torch.stack([error.square(), error.abs(), y.square(), y], -1)

    mse, mae, squares, mean = _means(measure, *arguments, width=(4,), part=part).unbind(-1)
    variance = squares - mean.square()
    r2 = torch.where(variance > 1e-12 * squares, 1 - mse / variance, torch.nan)
    unit = 1 / statistics[TARGET_SCALE].double()
    return torch.stack([r2, mse.sqrt() * unit, mae * unit])


def partial_scores(
    config: TrainConfig,
    state: State,
    sample_indices: SampleIndices,
    segments: list[int],
    chosen: Sequence[bool],
    trials: int = 1,
) -> Tensor:
    """Return the scores on the chosen segments, and NaN on the others: [scores, segments].

    The scores are those of an evaluation of all segments. The size of a pass does not depend on the choice, so the
    network is compiled once for all trials.

    Args:
        config: Configuration of the trial.
        state: State to evaluate.
        sample_indices: Sample indices of the trial.
        segments: Number of samples in each domain and split.
        chosen: For each segment, whether to evaluate it.
        trials: Number of trials that are evaluated at once and share the memory.
    """
    total = sum(segments)
    pass_size = math.ceil(total / max(math.ceil(total / _max_samples(config, trials)), PASSES))
    everything = torch.arange(total, device=sample_indices.evaluate.device)
    evaluate, trained, positions = (
        torch.cat([found for found, flag in zip(torch.split(whole, segments), chosen, strict=True) if flag])
        for whole in (sample_indices.evaluate, sample_indices.trained, everything)
    )
    sizes = [size for size, flag in zip(segments, chosen, strict=True) if flag]
    indices = sample_indices._replace(evaluate=evaluate, trained=trained)
    found = scores(config, state, indices, sizes, trials, Part(positions, pass_size))
    columns = iter(found.unbind(-1))
    missing = torch.full_like(found[:, 0], torch.nan)
    return torch.stack([next(columns) if is_chosen else missing for is_chosen in chosen], -1)


def validation_segments(segments: Sequence[int]) -> list[bool]:
    """Return for each segment whether it is an *out* split."""
    return [SPLITS[number % len(SPLITS)] == "out" for number in range(len(segments))]


def selection_segments(segments: Sequence[int], test_domains: Sequence[int]) -> list[bool]:
    """Return for each segment whether a rule of model selection or a table uses it.

    These are the *out* splits and both splits of the held-out domains.
    """
    is_out = validation_segments(segments)
    return [flag or number // len(SPLITS) in test_domains for number, flag in enumerate(is_out)]


def validation_loss(
    config: TrainConfig, state: State, sample_indices: SampleIndices, segments: list[int], trials: int = 1
) -> Tensor:
    """Return the mean over training domains of the loss on their *out* split, without augmentation."""
    position, count = SPLITS.index("out"), len(SPLITS)
    trained = torch.stack([part[0] for part in torch.split(sample_indices.trained, segments)[position::count]])
    held_back = torch.cat(torch.split(sample_indices.evaluate, segments)[position::count])
    not_trained = torch.zeros_like(held_back, dtype=torch.bool)
    sample_indices = sample_indices._replace(evaluate=held_back, trained=not_trained)

    def losses(outputs: Tensor, y: Tensor) -> Tensor:
        return config.problem.loss.function(outputs, normalise_targets(y, sample_indices.statistics))

    means = _means(losses, config, state, sample_indices, segments[position::count], trials)
    return torch.where(trained, means, 0).sum() / trained.sum()


def predict_logits(config: TrainConfig, model: Model, indices: Tensor, statistics: Statistics) -> Tensor:
    """Return the logits [N, C] of samples of one domain and split, without augmentation, as float32 on the host.

    The host holds them, so the device needs memory for one pass only.
    """
    size = config.prediction_batch_size or _max_samples(config)
    predict = config.predictor(model)
    passes = config.table.inputs.iterate(torch.split(indices, size))
    prepare = partial(config.transform.prepare, statistics=statistics, dtype=config.dtype)
    outputs = (denormalise_outputs(predict(prepare(stored)), statistics) for stored in passes)
    return torch.cat([found.float().cpu() for found in outputs])


def _means(
    measure: Callable[[Tensor, Tensor], Tensor],
    config: TrainConfig,
    state: State,
    sample_indices: SampleIndices,
    segments: list[int],
    trials: int,
    width: tuple[int, ...] = (),
    part: Part | None = None,
) -> Tensor:
    """Return the mean over each segment of a measure of logits and labels, which has this shape for one sample."""
    model = config.problem.model(state.params, state)
    sizes = _pass_sizes(config, len(sample_indices.evaluate), segments, trials, part)
    padded = _pad(sample_indices, sum(sizes))
    key, count = state.random_key(Purpose.EVALUATION, state.step), len(padded.evaluate)
    keys = random.split(key, count) if part is None else random.fold(key, _repeat_last(part.positions, count))
    parts, flags = torch.split(padded.evaluate, sizes), torch.split(padded.trained, sizes)
    trained = _simplify(flags) if trials == 1 else flags
    segment_starts = set(itertools.accumulate(segments, initial=0)) if config.prediction_batch_size else {0}
    starts = list(itertools.accumulate(sizes, initial=0))
    group = None if config.prediction_batch_size else config.evaluation_group
    numbers = range(len(parts)) if group is None else range(group.index, len(parts), len(group.members))
    measured: list[Tensor] = []
    passes = config.table.inputs.iterate([parts[n] for n in numbers]) if numbers else ()
    for number, stored in zip(numbers, passes, strict=True):
        if starts[number] in segment_starts or not measured:  # a predictor may adapt to the samples of a segment
            predict = config.predictor(model)
        pass_keys = keys[starts[number] : starts[number + 1]]
        original_sizes = config.table.sizes[parts[number]]
        x = config.transform.for_evaluation(stored, original_sizes, pass_keys, config.dtype, trained[number])
        x = config.transform.normalise(x, sample_indices.statistics)
        measured.append(measure(predict(x), config.table.labels[parts[number]]))
    values = torch.cat(measured) if group is None else _all_gather(group, measured, parts, width)
    by_segment = torch.split(values[: sum(segments)].double(), segments)
    return torch.stack([value.mean(0) for value in by_segment])


def _all_gather(group: ProcessGroup, measured: list[Tensor], parts: Sequence[Tensor], width: tuple[int, ...]) -> Tensor:
    """Gather the measurements of all processes in the order of the passes, which all have one size."""
    rounds = math.ceil(len(parts) / len(group.members))
    local = parts[0].new_zeros((rounds, len(parts[0]), *width), dtype=torch.float64)
    for number, values in enumerate(measured):
        local[number] = values
    return group.all_gather(local).transpose(0, 1).flatten(0, 2)


def _pass_sizes(
    config: TrainConfig, count: int, segments: list[int], trials: int, part: Part | None = None
) -> list[int]:
    """Return the number of samples in each pass.

    Passes are as large as memory allows and have one size, so that the network is compiled for one shape. But if
    predictions depend on the other samples of a pass, a pass has ``prediction_batch_size`` samples of one segment.
    """
    if config.prediction_batch_size:
        return [len(part) for size in segments for part in torch.split(torch.empty(size), config.prediction_batch_size)]
    if part is not None:
        return [part.pass_size] * math.ceil(count / part.pass_size)
    passes = math.ceil(count / _max_samples(config, trials))
    return [math.ceil(count / passes)] * passes


def _max_samples(config: TrainConfig, trials: int = 1) -> int:
    """Return the largest number of samples of a pass, for each of some trials that share the memory."""
    pixels = max(math.prod(shape[-2:]) for shape in (config.table.inputs.shape[1:], config.transform.shape))
    return max(_max_pixels(config.table.labels.device) // (pixels * trials), 1)


def _max_pixels(device: torch.device) -> int:
    """Return the number of pixels of a pass. It depends on total, not free, memory: a resumed run needs the same."""
    most = PIXELS[device.type]
    return min(most, torch.cuda.get_device_properties(device).total_memory // BYTES) if device.type == "cuda" else most


def _pad(sample_indices: SampleIndices, count: int) -> SampleIndices:
    """Repeat the last sample until there are ``count`` samples. The results of the repeated ones are dropped."""
    evaluate, trained = (_repeat_last(part, count) for part in (sample_indices.evaluate, sample_indices.trained))
    return sample_indices._replace(evaluate=evaluate, trained=trained)


def _repeat_last(values: Tensor, count: int) -> Tensor:
    """Repeat the last value until there are ``count`` values."""
    missing = count - len(values)
    return torch.cat([values, values[-1:].expand(missing)]) if missing else values


def _simplify(flags: Sequence[Tensor]) -> list[Tensor | bool]:
    """Replace the flags of a pass by one bool if they are equal. Most are: a pass rarely spans two domains."""
    all_set, any_set = (torch.stack(values).tolist() for values in ([f.all() for f in flags], [f.any() for f in flags]))
    return [low if low == high else flag for low, high, flag in zip(all_set, any_set, flags, strict=True)]
