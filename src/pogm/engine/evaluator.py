"""Evaluation: scores on every domain and split, the validation loss, and logits, in large batches."""

import itertools
import math
from collections.abc import Callable, Sequence
from functools import partial

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
BYTES = 2**11  # GPU memory per pixel: four tensors of 128 channels in float32
SCORES = {"classification": ("accuracy",), "regression": ("r2", "rmse", "mae")}  # by task; the first one selects


def scores(
    config: TrainConfig, state: State, sample_indices: SampleIndices, segments: list[int], trials: int = 1
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
    """
    arguments = (config, state, sample_indices, segments, trials)
    if config.problem.loss.targets == "classes":
        return _means(lambda logits, y: logits.argmax(-1) == y, *arguments)[None]
    statistics = sample_indices.statistics

    def measure(outputs: Tensor, y: Tensor) -> Tensor:
        y = normalise_targets(y, statistics).double()
        error = outputs.squeeze(-1).double() - y
        return torch.stack([error.square(), error.abs(), y.square(), y], -1)

    mse, mae, squares, mean = _means(measure, *arguments, width=(4,)).unbind(-1)
    variance = squares - mean.square()
    r2 = torch.where(variance > 1e-12 * squares, 1 - mse / variance, torch.nan)
    unit = 1 / statistics[TARGET_SCALE].double()
    return torch.stack([r2, mse.sqrt() * unit, mae * unit])


def validation_scores(
    config: TrainConfig, state: State, sample_indices: SampleIndices, segments: list[int], trials: int = 1
) -> Tensor:
    """Return the scores on each segment that is an *out* split, and NaN for the others: [scores, segments]."""
    position, count = SPLITS.index("out"), len(SPLITS)
    chosen, sizes = _select_split(sample_indices, segments, position)
    found = scores(config, state, chosen, sizes, trials)
    is_out = torch.arange(len(segments), device=found.device) % count == position
    return torch.where(is_out, found.repeat_interleave(count, -1), torch.nan)


def _select_split(sample_indices: SampleIndices, segments: list[int], position: int) -> tuple[SampleIndices, list[int]]:
    """Return the sample indices of one split of every domain, and their numbers."""
    count = len(SPLITS)
    evaluate, trained = (
        torch.cat(torch.split(part, segments)[position::count])
        for part in (sample_indices.evaluate, sample_indices.trained)
    )
    return sample_indices._replace(evaluate=evaluate, trained=trained), segments[position::count]


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
) -> Tensor:
    """Return the mean over each segment of a measure of logits and labels, which has this shape for one sample."""
    model = config.problem.model(state.params, state)
    sizes = _pass_sizes(config, len(sample_indices.evaluate), segments, trials)
    padded = _pad(sample_indices, sum(sizes))
    keys = random.split(state.random_key(Purpose.EVALUATION, state.step), len(padded.evaluate))  # one for each sample
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


def _pass_sizes(config: TrainConfig, count: int, segments: list[int], trials: int) -> list[int]:
    """Return the number of samples in each pass.

    Passes are as large as memory allows and have one size, so that the network is compiled for one shape. But if
    predictions depend on the other samples of a pass, a pass has ``prediction_batch_size`` samples of one segment.
    """
    if config.prediction_batch_size:
        return [len(part) for size in segments for part in torch.split(torch.empty(size), config.prediction_batch_size)]
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
    missing = count - len(sample_indices.evaluate)
    if not missing:
        return sample_indices
    evaluate, trained = (
        torch.cat([part, part[-1:].expand(missing)]) for part in (sample_indices.evaluate, sample_indices.trained)
    )
    return sample_indices._replace(evaluate=evaluate, trained=trained)


def _simplify(flags: Sequence[Tensor]) -> list[Tensor | bool]:
    """Replace the flags of a pass by one bool if they are equal. Most are: a pass rarely spans two domains."""
    all_set, any_set = (torch.stack(values).tolist() for values in ([f.all() for f in flags], [f.any() for f in flags]))
    return [low if low == high else flag for low, high, flag in zip(all_set, any_set, flags, strict=True)]
