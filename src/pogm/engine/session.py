"""A session: one trial, or several similar trials at once, set up on a device and ready to train."""

from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from typing import NamedTuple

import torch
from torch import Tensor
from torch.func import vmap

from pogm._system.messages import log
from pogm._system.runtime import configure_runtime
from pogm.core import trees
from pogm.core.compilation import compiling, import_compiler
from pogm.core.flat_params import flatten
from pogm.core.model import Model, Network, evaluation_mode
from pogm.core.state import State
from pogm.core.trees import Params, Tree
from pogm.diagnostics.probe import Rounds
from pogm.distributed.world import World
from pogm.engine.capture import GraphedStep
from pogm.engine.engine import Engine as Engine
from pogm.engine.evaluator import SCORES, TrialEvaluator, predict_logits
from pogm.engine.parallel import ParallelStrategy
from pogm.engine.sampling import SampleIndices, SampleTable
from pogm.engine.setup import build_config, build_table, check_alike, deterministic_mode, load_domains
from pogm.engine.task import Task
from pogm.engine.trajectory_storage import choose_storage, offload_trajectories
from pogm.engine.vectorise import (
    Step,
    TrainConfig,
    TrainState,
    float_hyperparameters,
    make_separate_step,
    make_single_step,
    make_vmap_step,
    select_trial,
    with_floats,
)
from pogm.modifiers.base import Modifier

STATISTICS = "transform."  # prefix of statistics among the tensors of a model


class _Evaluated(NamedTuple):
    """One task while it is evaluated."""

    config: TrainConfig
    train_state: TrainState
    sample_indices: SampleIndices
    test_domains: tuple[int, ...] | None  # None for several tasks under ``vmap``


class Row(NamedTuple):
    """One run of a session."""

    task: int  # index of the task that trains it
    modifiers: tuple[int, ...]  # indices of its modifiers among those of the task


class Session:
    """Tasks that train together.

    With one task, tensors have no trial axis. With several tasks, the trial axis is the first axis of every tensor.

    A task trains one run, or several runs that share the training (`Task.shared_by`). Results of a session have one
    entry for each run: the runs of the first task, then those of the second one, and so on.

    Args:
        tasks: Tasks that differ only in floats, seeds and held-out domains, and in the minibatch size if
            `Engine.mixes_batch_sizes`.
        engine: Device and execution strategy.
        world: Processes that share the training of one task; None for a single process.
    """

    def __init__(self, tasks: Sequence[Task], engine: Engine, world: World | None = None):
        self.tasks = tasks
        self.device = engine.torch_device()
        self.compiles, self.is_dynamic = engine.compiles(), engine.compile == "dynamic"
        self.deterministic = engine.deterministic
        self.has_trial_axis = len(tasks) > 1
        self.rows = [Row(number, modifiers) for number, task in enumerate(tasks) for modifiers in task.runs]
        check_alike(tasks, engine.mixes_batch_sizes())
        tasks[0].loss.check_method([tasks[0].algorithm, *tasks[0].modifiers])
        dtype = configure_runtime(self.device, tasks[0].precision, self.deterministic)

        networks = [task.build_network() for task in tasks]
        if self.compiles:
            import_compiler()
        networks = [network.to(self.device, dtype) for network in networks]
        self.network = networks[0].train().requires_grad_(False)
        has_one_size = len({task.training.batch_size for task in tasks}) == 1
        self.uses_vmap = self.has_trial_axis and has_one_size and engine.uses_vmap_for_trials(self.network)
        domains, sample_indices, self.segments = load_domains(tasks, self.device)
        table, self.prefetcher = build_table(tasks, domains, sample_indices, engine)
        configs = self._build_configs(engine, table, dtype, world)
        with self._deterministic_mode():
            starts = [
                config.start(_params(network), dict(network.named_buffers()), task.seed, len(task.test_domains))
                for config, network, task in zip(configs, networks, tasks, strict=True)
            ]
        floats = [float_hyperparameters(config) for config in configs]
        if self.compiles:  # as tensors: each value of a Python number would be compiled again
            configs = [with_floats(*pair) for pair in zip(configs, floats, strict=True)]
        self.config, self.configs = configs[0], configs
        self.sample_indices: SampleIndices = trees.stack(sample_indices) if self.has_trial_axis else sample_indices[0]
        self.floats = trees.stack(floats)
        self.train_state: TrainState = trees.stack(starts) if self.has_trial_axis else starts[0]
        step = self._make_step(sample_indices)
        self.captured = engine.capture and self.device.type == "cuda" and self.trajectory_storage != "host"
        self.advance: Step = GraphedStep(step) if self.captured else step
        self._steps_done = 0  # steps that led to `_counted_state`, for the phase of the next step
        self._counted_state: TrainState | None = None
        log.info(
            "Session on %s: compile %s (--compile %s), CUDA graph %s, trajectories on %s",
            self.device,
            "on" if self.compiles else "off",
            engine.compile,
            "on" if self.captured else "off",
            self.trajectory_storage,
        )

    def _build_configs(
        self, engine: Engine, table: SampleTable, dtype: torch.dtype, world: World | None
    ) -> list[TrainConfig]:
        """Return the configuration of each task, with the chosen storage of trajectories and parallel strategy."""
        on_streams = self.has_trial_axis and not self.uses_vmap
        configs = [build_config(task, self.network, table, engine, dtype, on_streams) for task in self.tasks]
        alone = not self.has_trial_axis and world is None and not self.tasks[0].probe.every
        self.trajectory_storage = choose_storage(engine, configs[0], dict(self.network.named_parameters()), alone)
        if self.trajectory_storage != "device":
            configs = [offload_trajectories(configs[0], self.trajectory_storage, self.device)]
        self.parallel = None if world is None else ParallelStrategy(self.tasks[0], world)
        return configs if self.parallel is None else [self.parallel.apply(configs[0])]

    def _make_step(self, sample_indices: list[SampleIndices]) -> Step:
        if self.uses_vmap:
            return make_vmap_step(self.config, self.sample_indices, self.floats)
        if self.has_trial_axis:
            return make_separate_step(self.configs, sample_indices, copies=self._copies_trials)
        return make_single_step(self.config, self.sample_indices)

    def step(self, probing: bool = False) -> None:
        """Train all tasks for one round. With ``probing``, the probe measures the round."""
        phase = self._next_phase()
        with self._deterministic_mode(), compiling(self.compiles, self.is_dynamic):
            if self.prefetcher is None:
                self.train_state = self.advance(self.train_state, probing, phase)
            else:
                self.prefetcher.prepare(self.train_state.state)
                self.train_state = self.advance(self.train_state, probing, phase)
                self.prefetcher.follow(self.train_state.state)
        self._steps_done, self._counted_state = self._steps_done + 1, self.train_state

    def _next_phase(self) -> int | None:
        """Return the phase of the next step. Its number is read from the device only if the state is new."""
        algorithm = self.tasks[0].algorithm
        if algorithm.phase_at(0) is None:
            return None
        if self.train_state is not self._counted_state:  # first step, or after an evaluation or a resume
            self._steps_done = int(self.train_state.state.step.reshape(-1)[0])
        return algorithm.phase_at(self._steps_done)

    def _deterministic_mode(self) -> AbstractContextManager[None]:
        """Return deterministic mode if the engine asks for it, else a context without effect."""
        return deterministic_mode(self.tasks[0], self.device) if self.deterministic else nullcontext()

    def close(self) -> None:
        """Delete the CUDA graphs. A process group cannot end while graphs use it."""
        if isinstance(self.advance, GraphedStep):
            for graph in self.advance.graphs.values():
                graph.reset()
            self.advance.graphs.clear()

    def gather_state(self) -> TrainState:
        """Return the state for a checkpoint. With several processes, only that of rank 0 is complete."""
        return self.train_state if self.parallel is None else self.parallel.gather_state(self.train_state)

    def state_template(self) -> TrainState:
        """Return a template of the gathered state, used to validate a checkpoint."""
        return self.train_state if self.parallel is None else self.parallel.state_template(self.train_state)

    def restore(self, gathered: TrainState | None) -> None:
        """Continue from a gathered state. With several processes, rank 0 passes it, and the others pass None."""
        if self.parallel is not None:
            self.train_state = self.parallel.distribute_state(self.train_state, gathered)
        elif gathered is not None:
            self.train_state = gathered

    def run_state(self, row: int) -> TrainState:
        """Return the state of one run: that of its task, with the memories of its own modifiers."""
        number, chosen = self.rows[row]
        return self._task_state(number).with_modifiers(chosen)

    def restore_runs(self, states: Mapping[int, TrainState]) -> None:
        """Continue from the states of some runs, by row. They are at one step.

        Runs that share a task have the same state apart from their modifiers. A task without a state gets that of
        another task, so that all are at the same step.
        """
        restored = []
        for number in range(len(self.tasks)):
            own = {row: state for row, state in states.items() if self.rows[row].task == number}
            memory = dict(self._task_state(number).modifiers)
            for row, state in (own or states).items():
                memory |= {str(old): state.modifiers[str(new)] for new, old in enumerate(self.rows[row].modifiers)}
            restored.append(next(iter((own or states).values()))._replace(modifiers=memory))
        self.train_state = trees.stack(restored) if self.has_trial_axis else restored[0]

    def _task_state(self, number: int) -> TrainState:
        found: TrainState = trees.index(self.train_state, number) if self.has_trial_axis else self.train_state
        return found

    def accuracies(self) -> list[list[float]]:
        """Return the accuracy, or the R² of a regression, of every run on each segment (domain and split)."""
        name = self.score_names[0]
        return [found[name] for found in self.scores()]

    def scores(self) -> list[dict[str, list[float]]]:
        """Return the scores of every run on each segment, by name."""
        found: dict[tuple[int, ...], list[list[list[float]]]] = {}  # by the modifiers that change the evaluation
        for chosen in map(self._evaluated_by, self.tasks[0].runs):
            if chosen not in found:
                found[chosen] = self._evaluate_tasks(
                    lambda task: self._scores(task, task.config.evaluated(task.train_state)), chosen
                ).tolist()
        return [self._name_scores(found[self._evaluated_by(row.modifiers)][row.task]) for row in self.rows]

    def _evaluated_by(self, chosen: tuple[int, ...]) -> tuple[int, ...]:
        """Return those of the modifiers that change an evaluation."""
        return tuple(index for index in chosen if self.config.modifiers[index].changes_evaluation)

    @property
    def score_names(self) -> tuple[str, ...]:
        """Names of the scores of the task; the first one selects models."""
        return SCORES[self.tasks[0].dataset.task]

    def _name_scores(self, found: list[list[float]]) -> dict[str, list[float]]:
        return dict(zip(self.score_names, found, strict=True))

    def _scores(self, task: _Evaluated, state: State) -> Tensor:
        return self._evaluator(task, state).scores(self.tasks[0].evaluation, task.test_domains)

    def _evaluator(self, task: _Evaluated, state: State) -> TrialEvaluator:
        trials = len(self.tasks) if self.uses_vmap else 1
        return TrialEvaluator(task.config, state, task.sample_indices, self.segments, trials)

    def observe(self, step: int) -> list[dict[str, float | list[float]]]:
        """Show the validation loss to the modifiers that need it. Return it for every run, as a metric."""

        def evaluate(task: _Evaluated) -> tuple[Tree, Tensor]:
            loss = self._evaluator(task, task.config.evaluated(task.train_state)).validation_loss()
            return task.config.observe(task.train_state.modifiers, loss, step), loss

        losses: dict[tuple[int, ...], list[float]] = {}
        memory = dict(self.train_state.modifiers)
        for chosen in self.tasks[0].runs:
            if Modifier.needs_validation_loss([self.config.modifiers[index] for index in chosen]):
                observed, found = self._evaluate_tasks(evaluate, chosen)
                observed = observed if self.has_trial_axis else trees.index(observed, 0)
                memory |= {str(old): observed[str(new)] for new, old in enumerate(chosen)}
                losses[chosen] = found.tolist()
        if losses:
            self.train_state = self.train_state._replace(modifiers=memory)
        return [
            {"validation_loss": losses[row.modifiers][row.task]} if row.modifiers in losses else {} for row in self.rows
        ]

    def final(self) -> list[tuple[int, dict[str, list[float]]] | None]:
        """Return the final step of every run and the scores there; None without a modifier that chooses it."""
        found: dict[tuple[int, ...], list[tuple[int, dict[str, list[float]]]]] = {}
        for chosen in self.tasks[0].runs:
            index = self._find_final(chosen)
            if index is None:
                continue

            def evaluate(task: _Evaluated, index: int = index) -> tuple[Tensor, Tensor]:
                modifiers, state = task.train_state.modifiers, task.train_state.state
                params, step = task.config.modifiers[index].final(modifiers[str(index)], state.params)
                return step, self._scores(task, state._replace(params=params))

            steps, numbers = self._evaluate_tasks(evaluate, chosen)
            found[chosen] = list(zip(steps.tolist(), map(self._name_scores, numbers.tolist()), strict=True))
        return [found[row.modifiers][row.task] if row.modifiers in found else None for row in self.rows]

    def _find_final(self, chosen: Sequence[int]) -> int | None:
        """Return the index, among the chosen modifiers, of the one that chooses the final weights, if any."""
        return Modifier.find_final([self.config.modifiers[index] for index in chosen])

    def predicting_tensors(self, row: int = 0) -> Params:
        """Return the weights and buffers that predict, of one run: those of a modifier if it chooses them.

        Statistics of the training data that the transform uses have names that begin with `STATISTICS`.
        """
        number, chosen = self.rows[row]
        train_state, config, index = self.run_state(row), self._run_config(row), self._find_final(chosen)
        with torch.no_grad():
            state = config.evaluated(train_state)
        params = state.params
        if index is not None:
            params, _ = config.modifiers[index].final(train_state.modifiers[str(index)], params)
        statistics = {f"{STATISTICS}{name}": value for name, value in self._task_indices(number).statistics.items()}
        return {**params, **state.buffers, **statistics}

    def _run_config(self, row: int) -> TrainConfig:
        number, chosen = self.rows[row]
        return self.configs[number].with_modifiers(chosen)

    def _task_indices(self, number: int) -> SampleIndices:
        found: SampleIndices = trees.index(self.sample_indices, number) if self.has_trial_axis else self.sample_indices
        return found

    def predict(
        self, tensors: Mapping[str, Tensor], segments: Sequence[int], row: int = 0
    ) -> list[tuple[Tensor, Tensor]]:
        """Predict some segments (domain and split) of one run with given weights, without augmentation.

        One run at a time and not compiled, since it is done once. With several processes, only one needs to call it.

        Args:
            tensors: Weights and buffers, as `predicting_tensors` returns them.
            segments: Indices of the segments.
            row: Index of the run.

        Returns:
            For each segment, logits [N, C] as float32 and labels [N], on the host.
        """
        config, sample_indices = self._run_config(row), self._task_indices(self.rows[row].task)
        chosen = [torch.split(sample_indices.evaluate, self.segments)[segment] for segment in segments]
        model = Model(self.network, *self.divide(tensors), autocast=config.problem.autocast)
        with self._deterministic_mode(), evaluation_mode(self.network), compiling(False):
            predict = partial(predict_logits, config, model, statistics=sample_indices.statistics)
            return [(predict(part), config.table.labels[part].cpu()) for part in chosen]

    def divide(self, tensors: Mapping[str, Tensor]) -> tuple[Params, Params]:
        """Return weights and buffers on the device, from tensors as `predicting_tensors` returns them."""
        names = {name for name, _ in self.network.named_parameters()}
        on_device = {name: leaf.to(self.device) for name, leaf in split_statistics(tensors)[0].items()}
        params = {name: leaf for name, leaf in on_device.items() if name in names}
        return params, {name: leaf for name, leaf in on_device.items() if name not in names}

    def _evaluate_tasks(self, function: Callable[[_Evaluated], Tree], chosen: tuple[int, ...]) -> Tree:
        """Apply a function to every task, with the chosen modifiers, in evaluation mode; stack the results."""

        def evaluate(train_state: TrainState, sample_indices: SampleIndices, floats: dict[str, Tensor]) -> Tree:
            config = with_floats(self.config, floats).with_modifiers(chosen)
            return function(_Evaluated(config, train_state, sample_indices, None))

        with self._deterministic_mode(), evaluation_mode(self.network), compiling(self.compiles, self.is_dynamic):
            both = self.train_state.with_modifiers(chosen), self.sample_indices
            if self.uses_vmap:
                return vmap(evaluate)(*both, self.floats)
            found = []
            for number, (config, task) in enumerate(zip(self.configs, self.tasks, strict=True)):
                train_state, indices = select_trial(both, number, self._copies_trials) if self.has_trial_axis else both
                config = config.with_modifiers(chosen)
                found.append(function(_Evaluated(config, train_state, indices, task.test_domains)))
            return trees.stack(found)

    @property
    def _copies_trials(self) -> bool:
        """True if every trial of a batch is copied before it is used; see ``select_trial``."""
        return self.deterministic or self.compiles

    def fetch_metrics(self) -> list[dict[str, float | list[float]]]:
        """Return the mean of each metric since the last call, for every run."""
        means = {name: (t["sum"] / t["count"]).cpu() for name, t in self.train_state.totals.items()}
        self.train_state = self.train_state._replace(totals=trees.map_leaves(torch.zeros_like, self.train_state.totals))
        indices = [row.task if self.has_trial_axis else ... for row in self.rows]
        return [{name: value[i].tolist() for name, value in means.items()} for i in indices]

    def fetch_rounds(self) -> list[Rounds | None]:
        """Return the rounds that the probe measured since the last call, for every run; None without a probe."""
        probe, memory = self.config.probe, self.train_state.probe
        if not memory:
            return [None] * len(self.rows)
        self.train_state = self.train_state._replace(probe=probe.clear(memory))
        on_host = trees.map_leaves(torch.Tensor.cpu, memory["rounds"])
        return [probe.read(trees.index(on_host, row.task) if self.has_trial_axis else on_host) for row in self.rows]

    def diverged(self) -> list[bool]:
        """Return True for every run whose weights are not all finite."""
        params = self.train_state.state.params
        finite = (vmap(trees.all_finite)(params) if self.has_trial_axis else trees.all_finite(params)[None]).tolist()
        return [not finite[row.task] for row in self.rows]


def _params(network: Network) -> Params:
    return flatten({name: leaf.detach() for name, leaf in network.named_parameters()})


def split_statistics(tensors: Mapping[str, Tensor]) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
    """Split the tensors of a model into its weights and buffers, and the statistics of the training data by name."""
    statistics = {n.removeprefix(STATISTICS): leaf for n, leaf in tensors.items() if n.startswith(STATISTICS)}
    return {name: leaf for name, leaf in tensors.items() if not name.startswith(STATISTICS)}, statistics
