"""A session: one trial, or several like ones at once, set up on a device and ready to train."""

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn
from torch.func import vmap

from pogm.core import trees
from pogm.core.errors import UsageError
from pogm.core.model import Network
from pogm.core.problem import Problem, live_buffers
from pogm.core.trees import Params
from pogm.datasets.base import Domain
from pogm.engine.data import Rows, Table, rows_of, table_of
from pogm.engine.domains import by_vmap, gradient, in_a_loop
from pogm.engine.evaluate import accuracies, evaluating
from pogm.engine.steps import Captured, Progress, Rates, Setting, Step, batched, single
from pogm.engine.task import Task

PRECISIONS = ("fp32", "tf32", "bf16", "fp64")


@dataclass(frozen=True)
class Engine:
    """How to compute. None of it changes what is computed, beyond rounding."""

    device: str = "cpu"
    capture: bool = True  # record the step as a CUDA graph, on a GPU
    domains: str = "auto"  # "loop" over them or "vmap" them; auto maps networks of linear layers, which gain by it

    def place(self) -> torch.device:
        """The device, checked."""
        name = self.device
        if name == "auto":
            name = "cuda" if torch.cuda.is_available() else "cpu"
        try:
            device = torch.device(name)
        except RuntimeError as error:
            raise UsageError(f"Expected a device such as cpu, cuda or cuda:1; found {self.device!r}.") from error
        if device.type == "cuda" and not torch.cuda.is_available():
            raise UsageError("Expected a CUDA device; found none that torch can use. Pass --device cpu.")
        return device


class Session:
    """Tasks that train as one. With a single task, tensors have no trial axis; with several, they lead with it."""

    def __init__(self, tasks: Sequence[Task], engine: Engine):
        self.tasks = tasks
        self.device = engine.place()
        self.together = len(tasks) > 1
        first = tasks[0]
        dtype = torch.float64 if first.precision == "fp64" else torch.float32
        if self.device.type == "cuda":
            torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = first.precision != "fp32"

        networks = [task.build_network().to(self.device, dtype) for task in tasks]
        self.network = networks[0].train().requires_grad_(False)
        table, rows, self.segments = _laid_out(tasks, self.device)
        self.settings = [self._setting(task, engine, table, dtype) for task in tasks]
        starts = [
            setting.start(_params(network), _buffers(network), task.seed)
            for setting, network, task in zip(self.settings, networks, tasks, strict=True)
        ]
        self.rows: Rows = trees.stack(rows) if self.together else rows[0]
        self.progress: Progress = trees.stack(starts) if self.together else starts[0]
        step: Step = batched(self.settings, self.rows) if self.together else single(self.settings[0], self.rows)
        self.step_function = Captured(step) if engine.capture and self.device.type == "cuda" else step

    def _setting(self, task: Task, engine: Engine, table: Table, dtype: torch.dtype) -> Setting:
        rates = Rates(task.training.lr, task.training.weight_decay)
        mapped = engine.domains == "vmap" or (engine.domains == "auto" and _all_linear(self.network))
        problem = Problem(
            network=self.network,
            optimizer=task.algorithm.optimizer(*rates),
            num_domains=task.num_domains,
            num_classes=task.dataset.num_classes,
            gradient=gradient,
            each_domain=by_vmap if mapped else in_a_loop,
            penalties=task.penalties(),
            autocast=torch.bfloat16 if task.precision == "bf16" else None,
            live=live_buffers(self.network),
        )
        return Setting(
            task.algorithm, task.modifiers, rates, problem, table, task.training.batch_size, task.probe, dtype
        )

    def step(self, probing: bool = False) -> None:
        """One round."""
        self.progress = self.step_function(self.progress, probing)

    def accuracies(self) -> list[list[float]]:
        """Of every task: the accuracy on each segment."""
        with evaluating(self.network):
            if not self.together:
                result = accuracies(self.settings[0], self.progress.state, self.rows, self.segments)[None]
            else:
                result = vmap(self._accuracies_of_one)(self.progress.state, self.rows)
        numbers: list[list[float]] = result.tolist()
        return numbers

    def _accuracies_of_one(self, state: "trees.Tree", rows: Rows) -> Tensor:
        return accuracies(self.settings[0], state, rows, self.segments)

    def fetch_metrics(self) -> list[dict[str, float | list[float]]]:
        """Of every task: the mean of each metric since the last fetch. The only other place that waits for the GPU."""
        means = {name: (t["sum"] / t["count"]).cpu() for name, t in self.progress.totals.items()}
        self.progress = self.progress._replace(totals=trees.map_leaves(torch.zeros_like, self.progress.totals))
        rows = range(len(self.tasks)) if self.together else [...]
        return [{name: value[row].tolist() for name, value in means.items()} for row in rows]

    def diverged(self) -> list[int | None]:
        """Of every task: the step at which its weights stopped being finite numbers, or None."""
        finite = (
            vmap(trees.all_finite)(self.progress.state.params)
            if self.together
            else (trees.all_finite(self.progress.state.params)[None])
        )
        when = self.progress.diverged_at.reshape(-1)
        return [None if fine else step for fine, step in zip(finite.tolist(), when.tolist(), strict=True)]


def _laid_out(tasks: Sequence[Task], device: torch.device) -> tuple[Table, list[Rows], list[int]]:
    """One table for all tasks (those with the same data share its rows), and each task's rows in it."""
    loaded: list[list[Domain]] = []
    rows, segments = [], list[int]()
    for task in tasks:
        domains = task.load()
        if not any(domains is other for other in loaded):
            loaded.append(domains)
        before = loaded[: next(place for place, other in enumerate(loaded) if other is domains)]
        offset = sum(len(domain.labels) for other in before for domain in other)
        mine, segments = rows_of(domains, task.test_domains, task.trial_seed, device, offset)
        rows.append(mine)
    return table_of([domain for domains in loaded for domain in domains], device), rows, segments


def _all_linear(network: Network) -> bool:
    """Whether every weight is a linear layer's: K small products then make one batched one."""
    owners = [module for module in network.modules() if next(module.parameters(recurse=False), None) is not None]
    return all(isinstance(module, nn.Linear) for module in owners)


def _params(network: Network) -> Params:
    return {name: leaf.detach() for name, leaf in network.named_parameters()}


def _buffers(network: Network) -> Params:
    return dict(network.named_buffers())
