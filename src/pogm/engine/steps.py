"""One round of training, made single, batched or captured: three ways to the same numbers."""

import copy
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from pogm.algorithms.base import Algorithm
from pogm.core import random, trees
from pogm.core.errors import UsageError
from pogm.core.hyper import fields
from pogm.core.optim import Scalar
from pogm.core.problem import Problem
from pogm.core.state import Metrics, State
from pogm.core.trees import Tree
from pogm.engine.data import Rows, Table, draw
from pogm.modifiers.base import Modifier
from pogm.probes.angle import AngleProbe

DATA, MODIFY = 0, 1  # purposes of a trial's random numbers
NEVER = 2**62


class Progress(NamedTuple):
    """All that changes while a trial trains: what a checkpoint holds."""

    state: State
    probe: Tree
    totals: dict[str, dict[str, Tensor]]  # of each metric since the last evaluation: sum and count
    diverged_at: Tensor  # int64: the first step with a loss that is not finite


class Rates(NamedTuple):
    """What the optimizer is built from."""

    lr: Scalar
    weight_decay: Scalar


@dataclass(frozen=True)
class Setting:
    """All that stays the same while a trial trains."""

    algorithm: Algorithm
    modifiers: tuple[Modifier, ...]
    rates: Rates
    problem: Problem
    table: Table
    batch_size: int
    probe: AngleProbe | None = None
    dtype: torch.dtype = torch.float32

    def start(self, params: Tree, buffers: Tree, seed: int) -> Progress:
        """The progress before the first round."""
        key = random.key(seed, self.table.labels.device)
        state = self.algorithm.start(params, buffers, key, self.problem)
        memory = self.probe.start(state, self.problem) if self.probe else {}
        return Progress(state, memory, {}, torch.full_like(key, NEVER))

    def round(self, progress: Progress, rows: Rows, probing: bool = False) -> Progress:
        """Draw minibatches, modify them, step, add up what was reported."""
        before = progress.state
        count = self.algorithm.minibatches
        batches = []
        for number in (before.step * count + extra for extra in range(count)):
            keys = random.split(random.fold(before.key, number), 2)
            batch = draw(self.table, rows, keys[DATA], 0, self.batch_size, self.dtype)
            for place, modifier in enumerate(self.modifiers):
                batch = modifier.batch(batch, random.fold(keys[MODIFY], place), self.problem.num_classes)
            batches.append(batch)

        state, metrics = self.algorithm.step(before, batches, self.problem)
        memory = progress.probe
        if probing and self.probe and "angle" not in metrics:
            memory, measured = self.probe.measure(memory, before, state, batches, self.problem)
            metrics = metrics | measured
        broke = ~metrics["loss"].isfinite() & (progress.diverged_at == NEVER)
        diverged_at = torch.where(broke, before.step, progress.diverged_at)
        return Progress(state, memory, added(progress.totals, metrics), diverged_at)


def added(totals: dict[str, dict[str, Tensor]], metrics: Metrics) -> dict[str, dict[str, Tensor]]:
    """Sums and counts of what is finite: an undefined angle is left out of the mean, not made zero."""
    result = dict(totals)
    for name, value in metrics.items():
        finite = value.isfinite()
        now = {"sum": torch.where(finite, value, 0).double(), "count": finite.double()}
        result[name] = trees.add(totals[name], now) if name in totals else now
    return result


Step = Callable[[Progress, bool], Progress]


def single(setting: Setting, rows: Rows) -> Step:
    """One trial."""

    def step(progress: Progress, probing: bool) -> Progress:
        with torch.no_grad():
            return setting.round(progress, rows, probing)

    return step


def batched(settings: Sequence[Setting], rows: Rows) -> Step:
    """Many like trials at once: every tensor has a leading axis T, every float hyperparameter is one."""
    first = settings[0]
    floats = {name: torch.stack(values) for name, values in _floats(settings).items()}

    def step(progress: Progress, probing: bool) -> Progress:
        def of_one(progress: Progress, rows: Rows, floats: dict[str, Tensor]) -> Progress:
            return with_floats(first, floats).round(progress, rows, probing)

        with torch.no_grad():
            result: Progress = vmap(of_one)(progress, rows, floats)
            return result

    return step


def with_floats(setting: Setting, floats: dict[str, Tensor]) -> Setting:
    """The setting with its float hyperparameters replaced, without the checks that numbers went through."""

    def filled(part: Any, prefix: str) -> Any:
        part = copy.copy(part)
        for field in fields(part):
            if f"{prefix}.{field.name}" in floats:
                object.__setattr__(part, field.name, floats[f"{prefix}.{field.name}"])
        return part

    algorithm = filled(setting.algorithm, "algorithm")
    rates = Rates(floats["rates.lr"], floats["rates.weight_decay"])
    problem = replace(setting.problem, optimizer=algorithm.optimizer(*rates))
    modifiers = tuple(filled(part, f"modifier{place}") for place, part in enumerate(setting.modifiers))
    return replace(setting, algorithm=algorithm, modifiers=modifiers, rates=rates, problem=problem)


def _floats(settings: Sequence[Setting]) -> dict[str, list[Tensor]]:
    """Every float hyperparameter, trial by trial; all else must be equal, for it may shape the computation."""
    first = settings[0]
    result: dict[str, list[Tensor]] = {}
    for setting in settings:
        parts: dict[str, Any] = {"algorithm": setting.algorithm}
        parts |= {f"modifier{place}": part for place, part in enumerate(setting.modifiers)}
        values = {f"{name}.{f.name}": getattr(part, f.name) for name, part in parts.items() for f in fields(part)}
        values |= {f"rates.{name}": value for name, value in setting.rates._asdict().items()}
        for name, value in values.items():
            if isinstance(value, float):
                result.setdefault(name, []).append(
                    torch.tensor(value, dtype=setting.dtype, device=first.table.labels.device)
                )
            else:
                result.setdefault(f"={name}", []).append(value)
    for name in [name for name in result if name.startswith("=")]:
        if len(set(result.pop(name))) > 1:
            raise UsageError(
                f"Expected trials that share a batch to differ in floats alone; found different values of {name[1:]}. "
                "Run them apart."
            )
    return result


class Captured:
    """A step as a CUDA graph: recorded once, then replayed without the host.

    The graph and every tensor it touches live as long as this object.
    """

    def __init__(self, step: Step):
        self.step = step
        self.graphs: dict[bool, torch.cuda.CUDAGraph] = {}
        self.progress: Progress | None = None

    def __call__(self, progress: Progress, probing: bool) -> Progress:
        """Replay on this object's own copy of the progress, which is copied in only when it is another one."""
        if self.progress is None:
            self._prepare(progress)
        if progress is not self.progress:
            self._load(progress)
        if probing not in self.graphs:
            self._record(probing)
        self.graphs[probing].replay()
        assert self.progress is not None
        return self.progress

    def _prepare(self, progress: Progress) -> None:
        """A first step, thrown away, tells which metrics there are."""
        totals = self.step(progress._replace(totals={}), True).totals
        zeros = trees.map_leaves(torch.zeros_like, totals)
        self.progress = trees.map_leaves(torch.clone, progress._replace(totals=zeros))

    def _load(self, progress: Progress) -> None:
        assert self.progress is not None
        for name, sums in self.progress.totals.items():
            for kind, total in sums.items():
                known = progress.totals.get(name)
                total.copy_(known[kind]) if known else total.zero_()
        for mine, theirs in zip(self.progress[:2] + self.progress[3:], progress[:2] + progress[3:], strict=True):
            trees.map_leaves(lambda a, b: a.copy_(b), mine, theirs)

    def _record(self, probing: bool) -> None:
        assert self.progress is not None
        side = torch.cuda.Stream()  # type: ignore[no-untyped-call]
        side.wait_stream(torch.cuda.current_stream())
        with torch.cuda.stream(side):
            for _ in range(3):  # lets libraries choose their kernels before they are recorded
                self.step(self.progress, probing)
        torch.cuda.current_stream().wait_stream(side)
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            after = self.step(self.progress, probing)
            trees.map_leaves(lambda mine, new: mine.copy_(new), self.progress, after)
        self.graphs[probing] = graph
