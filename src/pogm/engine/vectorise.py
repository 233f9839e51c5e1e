"""One round of training, and steps that run it for one trial or for several trials at once.

``TrainConfig.round`` is what one step computes: draw minibatches, modify them, run the algorithm, measure. The
functions ``make_*_step`` run it for one trial, for several trials by ``vmap``, or for several trials separately. They
give the same results up to rounding.
"""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from pogm.algorithms.base import Algorithm
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.compilation import compiled, known_finite
from pogm.core.hyperparameters import fields
from pogm.core.model import Model
from pogm.core.optimizers import Scalar
from pogm.core.problem import Problem
from pogm.core.state import Metrics, Purpose, State
from pogm.core.trees import Tree
from pogm.data.transforms.base import Part, Transform
from pogm.diagnostics import Probe
from pogm.diagnostics.measurements import Round
from pogm.distributed.world import ProcessGroup
from pogm.engine.per_domain import run_on_streams
from pogm.engine.sampling import HELD_OUT, SampleIndices, SampleTable, draw_batch
from pogm.modifiers.base import Modifier, Predictor


class TrainState(NamedTuple):
    """Everything that changes while a trial trains. Checkpoints store it, with the field names as keys."""

    state: State
    modifiers: Tree  # memory of each modifier, by its index
    probe: Tree  # memory of the probe, with its measurements since the last evaluation
    totals: dict[str, dict[str, Tensor]]  # "sum" and "count" of each metric since the last evaluation

    def with_modifiers(self, chosen: Sequence[int]) -> "TrainState":
        """Return the state of a run that has only some of the modifiers, given by their indices."""
        return self._replace(modifiers={str(new): self.modifiers[str(old)] for new, old in enumerate(chosen)})


class Rates(NamedTuple):
    """Hyperparameters of the optimizer."""

    lr: Scalar
    weight_decay: Scalar


@dataclass(frozen=True)
class TrainConfig:
    """Everything that stays constant while a trial trains."""

    algorithm: Algorithm
    modifiers: tuple[Modifier, ...]
    rates: Rates
    problem: Problem
    table: SampleTable
    transform: Transform
    batch_size: int
    probe: Probe = Probe()  # noqa: RUF009  (frozen)
    probe_capacity: int = 0  # rounds that the buffer of the probe can hold
    dtype: torch.dtype = torch.float32
    part: Part | None = None  # domains and samples of a minibatch that this process trains on; None for all
    evaluation_group: ProcessGroup | None = None  # processes that share an evaluation

    def start(self, params: Tree, buffers: Tree, seed: int, held_out: int) -> TrainState:
        """Return the state before the first round.

        Args:
            params: Initial weights.
            buffers: Initial buffers.
            seed: Seed of all random numbers in training.
            held_out: Number of held-out domains.
        """
        key = random.key(seed, self.table.labels.device)
        state = self.algorithm.start(params, buffers, key, self.problem)
        modifiers = {str(i): modifier.start(state, self.problem) for i, modifier in enumerate(self.modifiers)}
        probe = self.probe.start(self.algorithm, state, self.problem, held_out, self.probe_capacity)
        return TrainState(state, modifiers, probe, {})

    def with_modifiers(self, chosen: Sequence[int]) -> "TrainConfig":
        """Return the configuration of a run that has only some of the modifiers, given by their indices."""
        return replace(self, modifiers=tuple(self.modifiers[index] for index in chosen))

    @property
    def prediction_batch_size(self) -> int:
        """Number of samples of one domain that are predicted together; 0 if predictions are independent."""
        sizes = [self.algorithm.prediction_batch_size, *(modifier.prediction_batch_size for modifier in self.modifiers)]
        return min(filter(None, sizes), default=0)

    def predictor(self, model: Model) -> Predictor:
        """Return the function that predicts the samples of one domain and split."""
        predict: Predictor = partial(self.algorithm.predict, model)
        for modifier in self.modifiers:
            predict = modifier.predictor(predict, model)
        return predict

    def evaluated(self, train_state: TrainState) -> State:
        """Return the state to evaluate: with the weights that a modifier chooses, or the current state."""
        index = Modifier.find_evaluated(self.modifiers)
        if index is None:
            return train_state.state
        return self.modifiers[index].evaluated(train_state.modifiers[str(index)], train_state.state)

    def observe(self, memory: Tree, loss: Tensor, step: int) -> Tree:
        """Show the validation loss to the modifiers, and return their memory."""
        modifiers = enumerate(self.modifiers)
        return {str(i): modifier.observe(memory[str(i)], loss, step) for i, modifier in modifiers}

    def round(
        self, train_state: TrainState, sample_indices: SampleIndices, probing: bool = False, phase: int | None = None
    ) -> TrainState:
        """Run one round: draw and modify minibatches, run the algorithm, add up its metrics.

        Args:
            train_state: State before the round.
            sample_indices: Sample indices of the trial.
            probing: Measure the round with the probe.
            phase: Phase of the algorithm, if it has phases.
        """
        before = train_state.state
        batches = self.batches(before, sample_indices)
        problem = self.problem if phase is None else replace(self.problem, phase=phase)
        state, metrics = self.algorithm.step(before, batches, problem)
        memory, state = Modifier.run_after(self.modifiers, train_state.modifiers, state, batches, self.problem)
        probe = self.probe.update_snapshot(train_state.probe, before)
        if probing and self.probe.every:
            held_out = self.batches(before, sample_indices, held_out=True) if self.probe.target else []
            probe = self.probe.measure(probe, Round(self.algorithm, self.problem, before, state, batches, held_out))
        return TrainState(state, memory, probe, add_to_totals(train_state.totals, metrics))

    def batches(self, state: State, sample_indices: SampleIndices, held_out: bool = False) -> list[Batch]:
        """Draw the minibatches of the next round and apply the modifiers. Held-out domains have other random keys."""
        batches = []
        count = self.algorithm.minibatches
        pool, statistics = sample_indices.held_out if held_out else sample_indices.train, sample_indices.statistics
        for turn in range(count):
            number = state.step * count + turn
            key = state.random_key(Purpose.DATA, number)
            if held_out:
                key, turn = random.fold(key, HELD_OUT), count + turn
            unchanged = not any(modifier.changes_batches for modifier in self.modifiers)
            part = self.part if unchanged else None  # modifiers may mix samples, so they need the whole minibatch
            batch = draw_batch(
                self.table, pool, key, self.batch_size, self.transform, self.dtype, turn, part, statistics
            )
            if self.modifiers:
                modifier_key = state.random_key(Purpose.MODIFIER, number)
                modifier_key = random.fold(modifier_key, HELD_OUT) if held_out else modifier_key
            for i, modifier in enumerate(self.modifiers):
                batch = modifier.batch(batch, random.fold(modifier_key, i), self.problem.num_classes)
            batches.append(batch if self.part is part else Batch(batch.x[self.part], batch.y[self.part]))
        return batches


@compiled
def add_to_totals(totals: dict[str, dict[str, Tensor]], metrics: Metrics) -> dict[str, dict[str, Tensor]]:
    """Add metrics to their sums and counts. Values that are not finite (undefined cosines) are not counted."""
    result = dict(totals)
    for name, value in metrics.items():
        if name in totals and known_finite(value):  # the same numbers with fewer operations
            result[name] = {"sum": totals[name]["sum"] + value, "count": totals[name]["count"] + 1}
            continue
        finite = value.isfinite()
        value_and_count = {"sum": torch.where(finite, value, 0).double(), "count": finite.double()}
        result[name] = trees.add(totals[name], value_and_count) if name in totals else value_and_count
    return result


Step = Callable[[TrainState, bool, int | None], TrainState]  # (state, measure with the probe, phase) -> state


def make_single_step(config: TrainConfig, sample_indices: SampleIndices) -> Step:
    """Return the step of one trial."""

    def step(train_state: TrainState, probing: bool, phase: int | None) -> TrainState:
        with torch.no_grad():
            return config.round(train_state, sample_indices, probing, phase)

    return step


def make_vmap_step(config: TrainConfig, sample_indices: SampleIndices, floats: dict[str, Tensor]) -> Step:
    """Return the step of several trials at once. All tensors and float hyperparameters have a leading axis T."""

    def step(train_state: TrainState, probing: bool, phase: int | None) -> TrainState:
        def step_trial(train_state: TrainState, sample_indices: SampleIndices, floats: dict[str, Tensor]) -> TrainState:
            return with_floats(config, floats).round(train_state, sample_indices, probing, phase)

        with torch.no_grad():
            result: TrainState = vmap(step_trial)(train_state, sample_indices, floats)
            return result

    return step


def make_separate_step(
    configs: Sequence[TrainConfig], sample_indices: Sequence[SampleIndices], copies: bool = False
) -> Step:
    """Return the step of several trials that share no operation.

    On a GPU they run on parallel CUDA streams, on a CPU one after the other.

    Args:
        configs: Configuration of each trial.
        sample_indices: Sample indices of each trial.
        copies: Copy the tensors of every trial; see ``select_trial``.
    """

    def step(train_state: TrainState, probing: bool, phase: int | None) -> TrainState:
        rounds = [
            partial(config.round, select_trial(train_state, i, copies), sample_indices[i], probing, phase)
            for i, config in enumerate(configs)
        ]
        with torch.no_grad():
            on_gpu = configs[0].table.labels.is_cuda
            result: TrainState = trees.stack(run_on_streams(rounds) if on_gpu else [run() for run in rounds])
            return result

    return step


def select_trial(stacked: Tree, index: int, clone: bool = False) -> Tree:
    """Return one trial of a batch, as views or as a copy.

    Libraries choose kernels by the alignment of a tensor, and a view may be aligned differently. Only a copy gets the
    kernels, and so the bits, that the trial would get alone. Compiled functions need weights with the same alignment in
    every call.
    """
    trial = trees.index(stacked, index)
    return trees.map_numbers(torch.clone, trial) if clone else trial


def float_hyperparameters(config: TrainConfig) -> dict[str, Tensor]:
    """Return all float hyperparameters by name, as tensors on the device."""
    floats = {f"rates.{name}": value for name, value in config.rates._asdict().items()}
    for owner, part in _parts(config).items():
        values = {f"{owner}.{field.name}": getattr(part, field.name) for field in fields(part)}
        floats |= {name: value for name, value in values.items() if isinstance(value, float)}
    return {n: torch.tensor(v, dtype=config.dtype, device=config.table.labels.device) for n, v in floats.items()}


def with_floats(config: TrainConfig, floats: dict[str, Tensor]) -> TrainConfig:
    """Return the configuration with other float hyperparameters, as tensors. They are not validated again."""
    parts = {owner: copy.copy(part) for owner, part in _parts(config).items()}
    for owner, part in parts.items():
        for field in fields(part):
            if f"{owner}.{field.name}" in floats:
                object.__setattr__(part, field.name, floats[f"{owner}.{field.name}"])
    algorithm: Algorithm = parts.pop("algorithm")
    rates = Rates(floats["rates.lr"], floats["rates.weight_decay"])
    modifiers = tuple(parts.values())
    problem = replace(
        config.problem,
        optimizer=algorithm.optimizer(*rates),
        penalties=Modifier.penalties(modifiers),
        custom_risks=Modifier.find_risks(modifiers),
    )
    return replace(config, algorithm=algorithm, modifiers=modifiers, rates=rates, problem=problem)


def _parts(config: TrainConfig) -> dict[str, Any]:
    """Return everything that has hyperparameters, by name."""
    modifiers = {f"modifier{i}": part for i, part in enumerate(config.modifiers)}
    return {"algorithm": config.algorithm, **modifiers}
