"""One round of training, alone or for many like trials at once: several ways to the same numbers."""

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
from pogm.core.compilation import compiled
from pogm.core.hyperparameters import fields
from pogm.core.model import Model
from pogm.core.optimizers import Scalar
from pogm.core.problem import Problem
from pogm.core.state import Metrics, Purpose, State
from pogm.core.trees import Tree
from pogm.data.transforms.base import Part, Transform
from pogm.diagnostics import Probe
from pogm.diagnostics.round import Round
from pogm.distributed.process_group import ProcessGroup
from pogm.engine.cuda_streams import side_by_side
from pogm.engine.sampling import HELD_OUT, ImageTable, SampleIndices, SamplePool, draw
from pogm.modifiers.base import Modifier, Predictor


class TrainState(NamedTuple):
    """All that changes while a trial trains: what a checkpoint holds."""

    state: State
    modifiers: Tree  # what each keeps, by its place
    probe: Tree  # what it keeps, and what it measured since the last evaluation
    totals: dict[str, dict[str, Tensor]]  # of each metric since the last evaluation: sum and count


class Rates(NamedTuple):
    """What the optimizer is built from."""

    lr: Scalar
    weight_decay: Scalar


@dataclass(frozen=True)
class TrainConfig:
    """All that stays the same while a trial trains."""

    algorithm: Algorithm
    modifiers: tuple[Modifier, ...]
    rates: Rates
    problem: Problem
    table: ImageTable
    transform: Transform
    batch_size: int
    probe: Probe = Probe()  # noqa: RUF009  (frozen)
    room: int = 0  # for measurements, in rounds
    dtype: torch.dtype = torch.float32
    part: Part | None = None  # of a minibatch, what this process trains on, if many share it
    everyone: ProcessGroup | None = None  # the processes that share an evaluation

    def start(self, params: Tree, buffers: Tree, seed: int, held_out: int) -> TrainState:
        """The progress before the first round; so many domains are held out."""
        key = random.key(seed, self.table.labels.device)
        state = self.algorithm.start(params, buffers, key, self.problem)
        kept = {str(place): modifier.start(state, self.problem) for place, modifier in enumerate(self.modifiers)}
        memory = self.probe.start(self.algorithm, state, self.problem, held_out, self.room)
        return TrainState(state, kept, memory, {})

    @property
    def predicts_by(self) -> int:
        """How many images of one domain are predicted together; 0 if their company does not matter."""
        sizes = [self.algorithm.predicts_by, *(modifier.predicts_by for modifier in self.modifiers)]
        return min(filter(None, sizes), default=0)

    def predictor(self, model: Model) -> Predictor:
        """How the images of one domain and split are predicted."""
        predict: Predictor = partial(self.algorithm.predict, model)
        for modifier in self.modifiers:
            predict = modifier.predictor(predict, model)
        return predict

    def observed(self, kept: Tree, loss: Tensor, step: int) -> Tree:
        """What the modifiers keep once they know the validation loss."""
        places = enumerate(self.modifiers)
        return {str(place): modifier.observe(kept[str(place)], loss, step) for place, modifier in places}

    def round(self, train_state: TrainState, rows: SampleIndices, probing: bool = False) -> TrainState:
        """Draw minibatches, modify them, step, add up what was reported; measure, if it is time to."""
        before = train_state.state
        batches = self.batches(before, rows.train)
        state, metrics = self.algorithm.step(before, batches, self.problem)
        kept = dict(train_state.modifiers)
        for place, modifier in enumerate(self.modifiers):
            kept[str(place)], state = modifier.after(kept[str(place)], state, batches, self.problem)
        memory = self.probe.followed(train_state.probe, before)
        if probing and self.probe.every:
            held_out = self.batches(before, rows.held_out, held_out=True) if self.probe.target else []
            memory = self.probe.measured(memory, Round(self.algorithm, self.problem, before, state, batches, held_out))
        return TrainState(state, kept, memory, added(train_state.totals, metrics))

    def batches(self, state: State, pool: SamplePool, held_out: bool = False) -> list[Batch]:
        """The minibatches of a state's next round, modified; those of held-out domains have keys of their own."""
        made = []
        count = self.algorithm.minibatches
        for turn in range(count):
            number = state.step * count + turn
            key = state.random_key(Purpose.DATA, number)
            if held_out:
                key, turn = random.fold(key, HELD_OUT), count + turn
            alone = not any(modifier.changes_batches for modifier in self.modifiers)
            part = self.part if alone else None  # what is mixed must all be there
            batch = draw(self.table, pool, key, self.batch_size, self.transform, self.dtype, turn, part)
            if self.modifiers:
                change = state.random_key(Purpose.MODIFIER, number)
                change = random.fold(change, HELD_OUT) if held_out else change
            for place, modifier in enumerate(self.modifiers):
                batch = modifier.batch(batch, random.fold(change, place), self.problem.num_classes)
            made.append(batch if self.part is part else Batch(batch.x[self.part], batch.y[self.part]))
        return made


@compiled
def added(totals: dict[str, dict[str, Tensor]], metrics: Metrics) -> dict[str, dict[str, Tensor]]:
    """Sums and counts of what is finite: an undefined angle is left out of the mean, not made zero."""
    result = dict(totals)
    for name, value in metrics.items():
        finite = value.isfinite()
        now = {"sum": torch.where(finite, value, 0).double(), "count": finite.double()}
        result[name] = trees.add(totals[name], now) if name in totals else now
    return result


Step = Callable[[TrainState, bool], TrainState]


def single(config: TrainConfig, rows: SampleIndices) -> Step:
    """One trial."""

    def step(train_state: TrainState, probing: bool) -> TrainState:
        with torch.no_grad():
            return config.round(train_state, rows, probing)

    return step


def batched(config: TrainConfig, rows: SampleIndices, floats: dict[str, Tensor]) -> Step:
    """Many like trials at once: every tensor has a leading axis T, and so has every float hyperparameter."""

    def step(train_state: TrainState, probing: bool) -> TrainState:
        def of_one(train_state: TrainState, rows: SampleIndices, floats: dict[str, Tensor]) -> TrainState:
            return with_floats(config, floats).round(train_state, rows, probing)

        with torch.no_grad():
            result: TrainState = vmap(of_one)(train_state, rows, floats)
            return result

    return step


def apart(settings: Sequence[TrainConfig], rows: Sequence[SampleIndices], copies: bool = False) -> Step:
    """Many trials that share no operation: side by side on a GPU, else one after the other.

    With ``copies`` every trial computes on a copy of its row, as it would alone (see ``row_of``).
    """

    def step(train_state: TrainState, probing: bool) -> TrainState:
        pieces = [
            partial(config.round, row_of(train_state, place, copies), rows[place], probing)
            for place, config in enumerate(settings)
        ]
        with torch.no_grad():
            on_gpu = settings[0].table.labels.is_cuda
            result: TrainState = trees.stack(side_by_side(pieces) if on_gpu else [piece() for piece in pieces])
            return result

    return step


def row_of(stacked: Tree, place: int, copied: bool = False) -> Tree:
    """One trial of a batch, as views of the batch or as a copy.

    A view begins anywhere in memory. Libraries choose their kernels by the alignment of a tensor, so only a copy gets
    the kernels, and with them the bits, that the trial would get alone.
    """
    row = trees.index(stacked, place)
    return trees.map_numbers(torch.clone, row) if copied else row


def floats_of(config: TrainConfig) -> dict[str, Tensor]:
    """Every float hyperparameter by name, as tensors on the device."""
    floats = {f"rates.{name}": value for name, value in config.rates._asdict().items()}
    for owner, part in _parts(config).items():
        values = {f"{owner}.{field.name}": getattr(part, field.name) for field in fields(part)}
        floats |= {name: value for name, value in values.items() if isinstance(value, float)}
    return {n: torch.tensor(v, dtype=config.dtype, device=config.table.labels.device) for n, v in floats.items()}


def with_floats(config: TrainConfig, floats: dict[str, Tensor]) -> TrainConfig:
    """The setting with its float hyperparameters replaced, without the checks that numbers went through."""
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
        replacement=Modifier.replacement(modifiers),
    )
    return replace(config, algorithm=algorithm, modifiers=modifiers, rates=rates, problem=problem)


def _parts(config: TrainConfig) -> dict[str, Any]:
    """All that has hyperparameters, by name."""
    modifiers = {f"modifier{place}": part for place, part in enumerate(config.modifiers)}
    return {"algorithm": config.algorithm, **modifiers}
