"""Options of the runner."""

import os
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

from pogm._system.determinism import fix_cublas_workspace
from pogm.benchmark.runs.context import silence_compiler_log
from pogm.distributed.world import Launch, SingleProcess, World, connect
from pogm.engine.session import Engine
from pogm.models.weights import WEIGHTS_VARIABLE


@dataclass(frozen=True)
class RunOptions:
    """Options of the runner. They do not change what a trial computes."""

    data: Path | None = None  # folder of the datasets
    engine: Engine = field(default_factory=Engine)  # device, compilation, memory
    threads: int = 1  # CPU threads; more are faster for large networks, and round differently
    checkpoint_seconds: float = 30.0  # minimum time between two checkpoints
    weights: Path | None = None  # file, or folder of files, with the initial weights of networks
    trackers: tuple[str, ...] = ()  # names of experiment trackers, such as tensorboard
    launch: Launch | None = None  # rank and world size if torchrun started this process
    keep_models: bool = True  # keep the selected models of finished runs of a sweep, most of their disk space

    def __post_init__(self) -> None:
        if self.trackers:
            from pogm.trackers import check_trackers

            check_trackers(self.trackers)

    @property
    def is_first_process(self) -> bool:
        """True for a single process, and for rank 0 of those that torchrun started."""
        return self.launch is None or self.launch.rank == 0

    def enter(self) -> None:
        """Set the environment variables and the logging of this process, before it uses CUDA."""
        if self.weights is not None:
            os.environ[WEIGHTS_VARIABLE] = str(self.weights)
        if self.engine.compiles():
            silence_compiler_log()
        if self.engine.deterministic and self.engine.torch_device().type == "cuda":
            fix_cublas_workspace()  # before the process group, which uses CUDA, is created

    @contextmanager
    def join_processes(self) -> Iterator[World | SingleProcess]:
        """Join the processes of the run while the block runs."""
        if self.launch is None:
            yield SingleProcess()
            return
        with connect(self.launch, self.engine.torch_device()) as world:
            yield world
