"""Evaluation: scores on every domain and split, the validation loss, and logits, in large batches."""

import itertools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
PASSES = 8  # least number of passes over all samples, if only some segments are evaluated
BYTES = 2**11  # GPU memory per pixel: four tensors of 128 channels in float32
SCORES = {"classification": ("accuracy",), "regression": ("r2", "rmse", "mae")}  # by task; the first one selects


@dataclass(frozen=True)
class TrialEvaluator:
    """Evaluates a state of a trial on segments. A segment is the samples of one domain and split."""

    config: TrainConfig
    state: State
    sample_indices: SampleIndices
    segments: list[int]  # number of samples in each segment
    trials: int = 1  # number of trials that are evaluated at once and share the memory
    # Only for some segments of the trial: the positions of their samples among all samples, on which the random numbers
    # of a sample depend, and the number of samples in a pass.
    positions: Tensor | None = None
    pass_size: int = 0

    def scores(self, evaluation: str, test_domains: Sequence[int] | None) -> Tensor:
        """Return the scores that a trial records, [scores, segments]; see `SCORES` for their names.

        Args:
            evaluation: Samples to predict, see `Task.evaluation`. The scores on other segments are NaN.
            test_domains: Numbers of the held-out domains; None for several trials under ``vmap``, which needs the same
                segments of all trials.
        """
        if evaluation == "validation":
            return self._scores_of(self._is_out)
        if evaluation == "selection" and test_domains is not None:
            is_test = [number // len(SPLITS) in test_domains for number in range(len(self.segments))]
            return self._scores_of([out or test for out, test in zip(self._is_out, is_test, strict=True)])
        found = self._scores()
        if evaluation == "selection":
            is_predicted = torch.tensor(self._is_out, device=found.device) | ~self._is_trained
            found = torch.where(is_predicted, found, torch.nan)
        return found

    def validation_loss(self) -> Tensor:
        """Return the mean over training domains of the loss on their *out* split, without augmentation."""
        some = self._select(self._is_out)
        indices = some.sample_indices._replace(trained=torch.zeros_like(some.sample_indices.trained))

        def losses(outputs: Tensor, y: Tensor) -> Tensor:
            return self.config.problem.loss.function(outputs, normalise_targets(y, indices.statistics))

        means = replace(some, sample_indices=indices)._means(losses)
        return torch.where(some._is_trained, means, 0).sum() / some._is_trained.sum()

    @property
    def _is_out(self) -> list[bool]:
        """True for each segment that is an *out* split."""
        return [SPLITS[number % len(SPLITS)] == "out" for number in range(len(self.segments))]

    @property
    def _is_trained(self) -> Tensor:
        """True for each segment of a training domain."""
        return torch.stack([part[0] for part in torch.split(self.sample_indices.trained, self.segments)])

    def _select(self, chosen: Sequence[bool]) -> "TrialEvaluator":
        """Return the evaluator of some segments."""
        evaluate, trained = (
            torch.cat([*itertools.compress(torch.split(whole, self.segments), chosen)])
            for whole in (self.sample_indices.evaluate, self.sample_indices.trained)
        )
        indices = self.sample_indices._replace(evaluate=evaluate, trained=trained)
        return replace(self, sample_indices=indices, segments=[*itertools.compress(self.segments, chosen)])

    def _scores_of(self, chosen: Sequence[bool]) -> Tensor:
        """Return the scores on the chosen segments, and NaN on the others.

        The scores are those of an evaluation of all segments. The size of a pass does not depend on the choice, so the
        network is compiled once for all trials.
        """
        total = sum(self.segments)
        everything = torch.arange(total, device=self.sample_indices.evaluate.device)
        positions = torch.cat([*itertools.compress(torch.split(everything, self.segments), chosen)])
        passes = max(math.ceil(total / _max_samples(self.config, self.trials)), PASSES)
        some = replace(self._select(chosen), positions=positions, pass_size=math.ceil(total / passes))
        found = some._scores()
        columns = iter(found.unbind(-1))
        missing = torch.full_like(found[:, 0], torch.nan)
        return torch.stack([next(columns) if is_chosen else missing for is_chosen in chosen], -1)

    def _scores(self) -> Tensor:
        """Return the scores on all segments.

        The errors of a regression are in the unit of the targets. R² is undefined, NaN, if all targets of a segment are
        equal.
        """
        if self.config.problem.loss.targets == "classes":
            return self._means(lambda logits, y: logits.argmax(-1) == y)[None]
        statistics = self.sample_indices.statistics

        def measure(outputs: Tensor, y: Tensor) -> Tensor:
            y = normalise_targets(y, statistics).double()
            error = outputs.squeeze(-1).double() - y
            return torch.stack([error.square(), error.abs(), y.square(), y], -1)

        mse, mae, squares, mean = self._means(measure, width=(4,)).unbind(-1)
        variance = squares - mean.square()
        r2 = torch.where(variance > 1e-12 * squares, 1 - mse / variance, torch.nan)
        unit = 1 / statistics[TARGET_SCALE].double()
        return torch.stack([r2, mse.sqrt() * unit, mae * unit])

    def _means(self, measure: Callable[[Tensor, Tensor], Tensor], width: tuple[int, ...] = ()) -> Tensor:
        """Return the mean over each segment of a measure of logits and labels, which has this shape for one sample."""
        config = self.config
        model = config.problem.model(self.state.params, self.state)
        sizes = self._pass_sizes()
        starts = list(itertools.accumulate(sizes, initial=0))
        parts = torch.split(_repeat_last(self.sample_indices.evaluate, starts[-1]), sizes)
        flags = torch.split(_repeat_last(self.sample_indices.trained, starts[-1]), sizes)
        trained = _simplify(flags) if self.trials == 1 else flags
        keys = self._sample_keys(starts[-1])
        segment_starts = {0}
        if config.prediction_batch_size:  # a predictor may adapt to the samples of a segment
            segment_starts = set(itertools.accumulate(self.segments, initial=0))
        group = None if config.prediction_batch_size else config.evaluation_group
        numbers = range(len(parts)) if group is None else range(group.index, len(parts), len(group.members))
        measured: list[Tensor] = []
        passes = config.table.inputs.iterate([parts[n] for n in numbers]) if numbers else ()
        for number, stored in zip(numbers, passes, strict=True):
            if starts[number] in segment_starts or not measured:
                predict = config.predictor(model)
            pass_keys = keys[starts[number] : starts[number + 1]]
            original_sizes = config.table.sizes[parts[number]]
            x = config.transform.for_evaluation(stored, original_sizes, pass_keys, config.dtype, trained[number])
            x = config.transform.normalise(x, self.sample_indices.statistics)
            measured.append(measure(predict(x), config.table.labels[parts[number]]))
        values = torch.cat(measured) if group is None else _all_gather(group, measured, parts, width)
        by_segment = torch.split(values[: sum(self.segments)].double(), self.segments)
        return torch.stack([value.mean(0) for value in by_segment])

    def _sample_keys(self, count: int) -> Tensor:
        """Return a random key for each sample; the last sample is repeated until there are ``count`` samples."""
        key = self.state.random_key(Purpose.EVALUATION, self.state.step)
        if self.positions is None:
            return random.split(key, count)
        return random.fold(key, _repeat_last(self.positions, count))

    def _pass_sizes(self) -> list[int]:
        """Return the number of samples in each pass.

        Passes are as large as memory allows and have one size, so that the network is compiled for one shape. But if
        predictions depend on the other samples of a pass, a pass has ``prediction_batch_size`` samples of one segment.
        """
        if most := self.config.prediction_batch_size:
            return [min(most, size - start) for size in self.segments for start in range(0, size, most)]
        count = len(self.sample_indices.evaluate)
        if self.positions is not None:
            return [self.pass_size] * math.ceil(count / self.pass_size)
        passes = math.ceil(count / _max_samples(self.config, self.trials))
        return [math.ceil(count / passes)] * passes


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


def _all_gather(group: ProcessGroup, measured: list[Tensor], parts: Sequence[Tensor], width: tuple[int, ...]) -> Tensor:
    """Gather the measurements of all processes in the order of the passes, which all have one size."""
    rounds = math.ceil(len(parts) / len(group.members))
    local = parts[0].new_zeros((rounds, len(parts[0]), *width), dtype=torch.float64)
    for number, values in enumerate(measured):
        local[number] = values
    return group.all_gather(local).transpose(0, 1).flatten(0, 2)


def _max_samples(config: TrainConfig, trials: int = 1) -> int:
    """Return the largest number of samples of a pass, for each of some trials that share the memory."""
    pixels = max(math.prod(shape[-2:]) for shape in (config.table.inputs.shape[1:], config.transform.shape))
    return max(_max_pixels(config.table.labels.device) // (pixels * trials), 1)


def _max_pixels(device: torch.device) -> int:
    """Return the number of pixels of a pass. It depends on total, not free, memory: a resumed run needs the same."""
    most = PIXELS[device.type]
    return min(most, torch.cuda.get_device_properties(device).total_memory // BYTES) if device.type == "cuda" else most


def _repeat_last(values: Tensor, count: int) -> Tensor:
    """Repeat the last value until there are ``count`` values."""
    missing = count - len(values)
    return torch.cat([values, values[-1:].expand(missing)]) if missing else values


def _simplify(flags: Sequence[Tensor]) -> list[Tensor | bool]:
    """Replace the flags of a pass by one bool if they are equal. Most are: a pass rarely spans two domains."""
    all_set, any_set = (torch.stack(values).tolist() for values in ([f.all() for f in flags], [f.any() for f in flags]))
    return [low if low == high else flag for low, high, flag in zip(all_set, any_set, flags, strict=True)]
