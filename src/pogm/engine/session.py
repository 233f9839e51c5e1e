"""A session: one trial, or several like ones at once, set up on a device and ready to train."""

from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext

import torch
from torch import Tensor
from torch.func import vmap

from pogm._system.determinism import fix_cublas_workspace
from pogm._system.errors import UsageError
from pogm._system.memory import keep_freed_memory
from pogm.core import trees
from pogm.core.compilation import compiling
from pogm.core.flat_params import flatten
from pogm.core.model import Network
from pogm.core.modes import evaluating
from pogm.core.problem import Problem, live_buffers
from pogm.core.trees import Params, Tree
from pogm.data.datasets.base import Domain
from pogm.diagnostics import buffer
from pogm.diagnostics.probe import Rounds
from pogm.distributed.world import World
from pogm.engine.capture import Captured
from pogm.engine.cuda_streams import in_streams
from pogm.engine.engine import Engine as Engine
from pogm.engine.evaluator import accuracies, validation_loss
from pogm.engine.image_store import Resident, fits
from pogm.engine.parallel import ParallelStrategy
from pogm.engine.per_domain import by_vmap, gradient, in_a_loop
from pogm.engine.prefetch import Streamed
from pogm.engine.sampling import ImageTable, SampleIndices, facts, joined
from pogm.engine.setup import check_alike, deterministic_mode, laid_out, set_precision
from pogm.engine.task import Task
from pogm.engine.trajectory_storage import offloaded, place_of
from pogm.engine.vectorise import (
    Rates,
    Step,
    TrainConfig,
    TrainState,
    apart,
    batched,
    floats_of,
    row_of,
    single,
    with_floats,
)
from pogm.modifiers.base import Modifier

WAYS = {"loop": in_a_loop, "streams": in_streams, "vmap": by_vmap}  # over domains


class Session:
    """Tasks that train as one. With a single task, tensors have no trial axis; with several, they lead with it."""

    def __init__(self, tasks: Sequence[Task], engine: Engine, world: World | None = None):
        self.tasks = tasks
        self.device = engine.place()
        self.fuses = engine.compiles()
        self.deterministic = engine.deterministic
        self.together = len(tasks) > 1
        check_alike(tasks)
        if self.deterministic and self.device.type == "cuda":
            fix_cublas_workspace()
        dtype = set_precision(tasks[0].precision, self.device)
        if self.device.type == "cpu":
            keep_freed_memory()
        else:
            if self.device.index is not None:
                torch.cuda.set_device(self.device)  # streams and graphs are the current device's
            torch.cuda.reset_peak_memory_stats(self.device)  # a worker's sessions come one after the other

        networks = [task.build_network().to(self.device, dtype) for task in tasks]
        self.network = networks[0].train().requires_grad_(False)
        self.mapped = self.together and engine.maps_trials(self.network)
        domains, rows, self.segments = laid_out(tasks, self.device)
        table, self.stream = self._table(domains, rows, engine)
        settings = [self._train_config(task, engine, table, dtype) for task in tasks]
        alone = not self.together and world is None and not tasks[0].probe.every
        self.trajectories = place_of(engine, settings[0], dict(self.network.named_parameters()), alone)
        if self.trajectories != "device":
            settings = [offloaded(settings[0], self.trajectories, self.device)]
        self.parallel = None if world is None else ParallelStrategy(tasks[0], world)
        if self.parallel is not None:
            settings = [self.parallel.of(settings[0])]
        with self._mode():
            starts = [
                config.start(_params(network), _buffers(network), task.seed, len(task.test_domains))
                for config, network, task in zip(settings, networks, tasks, strict=True)
            ]
        floats = [floats_of(config) for config in settings]
        if self.fuses:  # a number would be part of the code, and another one compiled again
            settings = [with_floats(*pair) for pair in zip(settings, floats, strict=True)]
        self.config, self.settings = settings[0], settings
        self.rows: SampleIndices = trees.stack(rows) if self.together else rows[0]
        self.floats = trees.stack(floats)
        self.train_state: TrainState = trees.stack(starts) if self.together else starts[0]
        if self.mapped:
            step = batched(self.config, self.rows, self.floats)
        elif self.together:
            step = apart(settings, rows, copies=self.deterministic)
        else:
            step = single(self.config, self.rows)
        self.captured = engine.capture and self.device.type == "cuda" and self.trajectories != "host"
        self.advance: Step = Captured(step) if self.captured else step

    def _table(
        self, domains: list[Domain], rows: list[SampleIndices], engine: Engine
    ) -> tuple[ImageTable, Streamed | None]:
        images = joined(domains)
        labels, sizes = (part.to(self.device) for part in facts(domains))
        if engine.images == "resident" or (engine.images == "auto" and fits(images, self.device)):
            return ImageTable(Resident(images.to(self.device)), labels, sizes), None
        if self.together:
            raise UsageError(
                "Expected images that fit on the device for trials that train as one; found "
                f"{images.nbytes / 2**30:.1f} GiB of them, which have to be streamed. Run them one by one."
            )
        task = self.tasks[0]
        size, turns, target = task.training.batch_size, task.algorithm.minibatches, task.probe.target
        stream = Streamed(images, rows[0], size, turns, self.device, held_out=target)
        return ImageTable(stream, labels, sizes), stream

    def _train_config(self, task: Task, engine: Engine, table: ImageTable, dtype: torch.dtype) -> TrainConfig:
        rates = Rates(task.training.lr, task.training.weight_decay)
        way = engine.way_over_domains(self.network, task.transform.shape[-2] * task.transform.shape[-1])
        if self.together and not self.mapped and way == "streams":
            way = "loop"  # its trials are side by side already
        problem = Problem(
            network=self.network,
            optimizer=task.algorithm.optimizer(*rates),
            num_domains=task.num_domains,
            num_classes=task.dataset.num_classes,
            gradient=gradient,
            each_domain=WAYS[way],
            penalties=Modifier.penalties(task.modifiers),
            replacement=Modifier.replacement(task.modifiers),
            autocast=torch.bfloat16 if task.precision == "bf16" else None,
            live=live_buffers(self.network),
            mixes=any(modifier.mixes_samples for modifier in task.modifiers),
        )
        Modifier.ending(task.modifiers)  # at most one has the last word: better said before a run than after it
        return TrainConfig(
            algorithm=task.algorithm,
            modifiers=task.modifiers,
            rates=rates,
            problem=problem,
            table=table,
            transform=task.transform,
            batch_size=task.training.batch_size,
            probe=task.probe,
            room=task.room,
            dtype=dtype,
        )

    def step(self, probing: bool = False) -> None:
        """One round."""
        with self._mode(), compiling(self.fuses):
            if self.stream is None:
                self.train_state = self.advance(self.train_state, probing)
            else:
                self.stream.prepare(self.train_state.state)
                self.train_state = self.advance(self.train_state, probing)
                self.stream.follow(self.train_state.state)

    def _mode(self) -> AbstractContextManager[None]:
        """Deterministic mode, if the engine asks for it."""
        return deterministic_mode(self.tasks[0], self.device) if self.deterministic else nullcontext()

    def close(self) -> None:
        """Forget recorded graphs: a communicator waits for those that speak over it before it ends."""
        if isinstance(self.advance, Captured):
            for graph in self.advance.graphs.values():
                graph.reset()
            self.advance.graphs.clear()

    def whole(self) -> TrainState:
        """All that changes, for a checkpoint; of many processes, the first has it, with the parts of the others."""
        return self.train_state if self.parallel is None else self.parallel.whole(self.train_state)

    def like_whole(self) -> TrainState:
        """The shape of that."""
        return self.train_state if self.parallel is None else self.parallel.like_whole(self.train_state)

    def restore(self, whole: TrainState | None) -> None:
        """Go on from there; of many processes, all do, and the first one brings it."""
        if self.parallel is not None:
            self.train_state = self.parallel.received(self.train_state, whole)
        elif whole is not None:
            self.train_state = whole

    def accuracies(self) -> list[list[float]]:
        """Of every task: the accuracy on each segment."""

        def of_one(config: TrainConfig, train_state: TrainState, rows: SampleIndices) -> Tensor:
            return accuracies(config, train_state.state, rows, self.segments, self._at_once)

        numbers: list[list[float]] = self._evaluated(of_one).tolist()
        return numbers

    def observe(self, step: int) -> list[dict[str, float | list[float]]]:
        """Show the modifiers the validation loss at a step, if one wants it; of every task, what was measured."""
        if not Modifier.observing(self.config.modifiers):
            return [{} for _ in self.tasks]

        def of_one(config: TrainConfig, train_state: TrainState, rows: SampleIndices) -> tuple[Tree, Tensor]:
            loss = validation_loss(config, train_state.state, rows, self.segments, self._at_once)
            return config.observed(train_state.modifiers, loss, step), loss

        kept, losses = self._evaluated(of_one)
        self.train_state = self.train_state._replace(modifiers=kept if self.together else trees.index(kept, 0))
        return [{"validation_loss": loss} for loss in losses.tolist()]

    def final(self) -> list[tuple[int, list[float]]]:
        """Of every task: the step that stands for the run and the accuracies there, if a modifier decides on them."""
        place = Modifier.ending(self.config.modifiers)
        if place is None:
            return []

        def of_one(config: TrainConfig, train_state: TrainState, rows: SampleIndices) -> tuple[Tensor, Tensor]:
            params, step = config.modifiers[place].final(train_state.modifiers[str(place)], train_state.state.params)
            state = train_state.state._replace(params=params)
            return step, accuracies(config, state, rows, self.segments, self._at_once)

        steps, numbers = self._evaluated(of_one)
        return list(zip(steps.tolist(), numbers.tolist(), strict=True))

    def _evaluated(self, function: Callable[[TrainConfig, TrainState, SampleIndices], Tree]) -> Tree:
        """What a function makes of every task in evaluation mode, stacked."""

        def of_one(train_state: TrainState, rows: SampleIndices, floats: dict[str, Tensor]) -> Tree:
            return function(with_floats(self.config, floats), train_state, rows)

        with self._mode(), evaluating(self.network), compiling(self.fuses):
            if self.mapped:
                return vmap(of_one)(self.train_state, self.rows, self.floats)
            if self.together:
                both = (self.train_state, self.rows)
                parts = [(s, *row_of(both, place, self.deterministic)) for place, s in enumerate(self.settings)]
            else:
                parts = [(self.config, self.train_state, self.rows)]
            return trees.stack([function(*part) for part in parts])

    @property
    def _at_once(self) -> int:
        """How many trials are evaluated as one, and share the memory."""
        return len(self.tasks) if self.mapped else 1

    def fetch_metrics(self) -> list[dict[str, float | list[float]]]:
        """Of every task: the mean of each metric since the last fetch."""
        means = {name: (t["sum"] / t["count"]).cpu() for name, t in self.train_state.totals.items()}
        self.train_state = self.train_state._replace(totals=trees.map_leaves(torch.zeros_like, self.train_state.totals))
        rows = range(len(self.tasks)) if self.together else [...]
        return [{name: value[row].tolist() for name, value in means.items()} for row in rows]

    def fetch_rounds(self) -> list[Rounds | None]:
        """Of every task: what the probe has measured since the last fetch, round by round; None if there is none."""
        probe, kept = self.config.probe, self.train_state.probe
        if not kept:
            return [None] * len(self.tasks)
        self.train_state = self.train_state._replace(probe=kept | {"rounds": buffer.emptied(kept["rounds"])})
        here = trees.map_leaves(torch.Tensor.cpu, kept["rounds"])
        if not self.together:
            return [probe.read(here)]
        return [probe.read(trees.index(here, row)) for row in range(len(self.tasks))]

    def diverged(self) -> list[bool]:
        """Of every task: whether its weights have left the finite numbers."""
        params = self.train_state.state.params
        finite = vmap(trees.all_finite)(params) if self.together else trees.all_finite(params)[None]
        return [not fine for fine in finite.tolist()]


def _params(network: Network) -> Params:
    return flatten({name: leaf.detach() for name, leaf in network.named_parameters()})


def _buffers(network: Network) -> Params:
    return dict(network.named_buffers())
