"""Evaluation: accuracies on every domain and split, the validation loss, and logits, in large batches."""

import itertools
import math
from collections.abc import Callable, Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from pogm.core import random
from pogm.core.model import Model
from pogm.core.state import Purpose, State
from pogm.distributed.world import ProcessGroup
from pogm.engine.sampling import SPLITS, SampleIndices
from pogm.engine.vectorise import TrainConfig

PIXELS = {"cpu": 2**21, "cuda": 2**25}  # most pixels of a pass; on a CPU, malloc then uses its heap
BYTES = 2**11  # GPU memory per pixel: four tensors of 128 channels in float32


def accuracies(
    config: TrainConfig, state: State, sample_indices: SampleIndices, segments: list[int], trials: int = 1
) -> Tensor:
    """Return the accuracy on each segment.

    Args:
        config: Configuration of the trial.
        state: State to evaluate.
        sample_indices: Sample indices of the trial.
        segments: Number of samples in each domain and split.
        trials: Number of trials that are evaluated at once and share the memory.
    """
    return _means(lambda logits, y: logits.argmax(-1) == y, config, state, sample_indices, segments, trials)


def validation_accuracies(
    config: TrainConfig, state: State, sample_indices: SampleIndices, segments: list[int], trials: int = 1
) -> Tensor:
    """Return the accuracy on each segment that is an *out* split, and NaN for the others."""
    position, count = SPLITS.index("out"), len(SPLITS)
    chosen, sizes = _select_split(sample_indices, segments, position)
    found = _means(lambda logits, y: logits.argmax(-1) == y, config, state, chosen, sizes, trials)
    is_out = torch.arange(len(segments), device=found.device) % count == position
    return torch.where(is_out, found.repeat_interleave(count), torch.nan)


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
    """Return the mean over training domains of the cross-entropy on their *out* split, without augmentation."""
    position, count = SPLITS.index("out"), len(SPLITS)
    trained = torch.stack([part[0] for part in torch.split(sample_indices.trained, segments)[position::count]])
    held_back = torch.cat(torch.split(sample_indices.evaluate, segments)[position::count])
    not_trained = torch.zeros_like(held_back, dtype=torch.bool)
    sample_indices = sample_indices._replace(evaluate=held_back, trained=not_trained)

    def losses(logits: Tensor, y: Tensor) -> Tensor:
        return F.cross_entropy(logits, y, reduction="none")

    means = _means(losses, config, state, sample_indices, segments[position::count], trials)
    return torch.where(trained, means, 0).sum() / trained.sum()


def predict_logits(config: TrainConfig, model: Model, indices: Tensor) -> Tensor:
    """Return the logits [N, C] of images of one domain and split, without augmentation, as float32 on the host.

    The host holds them, so the device needs memory for one pass only.
    """
    size = config.prediction_batch_size or _max_images(config)
    predict = config.predictor(model)
    passes = config.table.images.iterate(torch.split(indices, size))
    return torch.cat([predict(config.transform.to_inputs(images, config.dtype)).float().cpu() for images in passes])


def _means(
    measure: Callable[[Tensor, Tensor], Tensor],
    config: TrainConfig,
    state: State,
    sample_indices: SampleIndices,
    segments: list[int],
    trials: int,
) -> Tensor:
    """Return the mean over each segment of a measure of logits and labels."""
    model = config.problem.model(state.params, state)
    sizes = _pass_sizes(config, len(sample_indices.evaluate), segments, trials)
    padded = _pad(sample_indices, sum(sizes))
    keys = random.split(state.random_key(Purpose.EVALUATION, state.step), len(padded.evaluate))  # one for each image
    parts, flags = torch.split(padded.evaluate, sizes), torch.split(padded.trained, sizes)
    trained = _simplify(flags) if trials == 1 else flags
    segment_starts = set(itertools.accumulate(segments, initial=0)) if config.prediction_batch_size else {0}
    starts = list(itertools.accumulate(sizes, initial=0))
    group = None if config.prediction_batch_size else config.evaluation_group
    numbers = range(len(parts)) if group is None else range(group.index, len(parts), len(group.members))
    measured: list[Tensor] = []
    passes = config.table.images.iterate([parts[n] for n in numbers]) if numbers else ()
    for number, images in zip(numbers, passes, strict=True):
        if starts[number] in segment_starts or not measured:  # a predictor may adapt to the images of a segment
            predict = config.predictor(model)
        pass_keys = keys[starts[number] : starts[number + 1]]
        original_sizes = config.table.sizes[parts[number]]
        x = config.transform.for_evaluation(images, original_sizes, pass_keys, config.dtype, trained[number])
        measured.append(measure(predict(x), config.table.labels[parts[number]]))
    values = torch.cat(measured) if group is None else _all_gather(group, measured, parts)
    by_segment = torch.split(values[: sum(segments)].double(), segments)
    return torch.stack([value.mean() for value in by_segment])


def _all_gather(group: ProcessGroup, measured: list[Tensor], parts: Sequence[Tensor]) -> Tensor:
    """Gather the measurements of all processes in the order of the passes, which all have one size."""
    rounds = math.ceil(len(parts) / len(group.members))
    local = parts[0].new_zeros((rounds, len(parts[0])), dtype=torch.float64)
    for number, values in enumerate(measured):
        local[number] = values
    return group.all_gather(local).transpose(0, 1).flatten()


def _pass_sizes(config: TrainConfig, count: int, segments: list[int], trials: int) -> list[int]:
    """Return the number of images in each pass.

    Passes are as large as memory allows and have one size, so that the network is compiled for one shape. But if
    predictions depend on the other images of a pass, a pass has ``prediction_batch_size`` images of one segment.
    """
    if config.prediction_batch_size:
        return [len(part) for size in segments for part in torch.split(torch.empty(size), config.prediction_batch_size)]
    passes = math.ceil(count / _max_images(config, trials))
    return [math.ceil(count / passes)] * passes


def _max_images(config: TrainConfig, trials: int = 1) -> int:
    """Return the largest number of images of a pass, for each of some trials that share the memory."""
    pixels = max(shape[-2] * shape[-1] for shape in (config.table.images.shape, config.transform.shape))
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
