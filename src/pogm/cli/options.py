"""Groups of options that several commands share. Each option is defined once, with its type, default and help."""

import os
from dataclasses import asdict, dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal, Self

from pogm._system.cpu import count_cores
from pogm._system.errors import UsageError
from pogm.cli.parser import group, option

if TYPE_CHECKING:
    from pogm.benchmark.executors.outcomes import Execute
    from pogm.benchmark.runs.options import RunOptions

MOST_STEPS = 10**8  # minibatches of a run
MOST_REPETITIONS = 1000  # seeds or trials of a plan
MOST_PROCESSES = 1024  # processes, or threads of a process
MOST_SAMPLES = 10**8
MOST_SECONDS = 10**8
MOST_SEED = 2**63 - 1
WEIGHTS = "File with the pretrained weights of the network (default: the published weights, downloaded once)."


def workers_option() -> Any:
    """Return the option --workers of commands that train several runs."""
    return option(
        "Number of processes that train runs in parallel on a CPU (default: one per core).",
        default_factory=count_cores,
        least=1,
        most=MOST_PROCESSES,
    )


def modifiers_option(of: str = "every algorithm") -> Any:
    """Return the option --with of commands that train one algorithm or several."""
    return option(
        f"Modifiers of {of}, such as Mixup (default: none).",
        (),
        flag="--with",
        metavar="MODIFIER",
        complete="modifiers",
    )


def probe_option() -> Any:
    """Return the option --probe-every of commands that train runs and can measure them."""
    return option(
        "Take the measurements of pogm measure in every N-th round (default: 0 = never).", 0, least=0, most=MOST_STEPS
    )


@dataclass(frozen=True, kw_only=True)
class Data:
    """Location of the datasets."""

    data: Path | None = option("Folder that contains the datasets (default: $POGM_DATA).", None, metavar="FOLDER")

    @property
    def folder(self) -> Path | None:
        """The folder, given or of the environment, in which ~ is replaced by the home directory."""
        found = self.data or os.environ.get("POGM_DATA")
        return Path(found).expanduser() if found else None

    @property
    def words(self) -> list[str]:
        """The option for another command; empty if it was not given."""
        return ["--data", str(self.data)] if self.data else []

    def for_run(self, recorded: Path | None) -> Self:
        """Return the option for a run that recorded its data folder, which counts more than the environment."""
        return replace(self, data=self.data or recorded)


@dataclass(frozen=True, kw_only=True)
class Device:
    """Device, memory and compilation. These options change results only by rounding."""

    title: ClassVar[str] = "device"
    device: str = option("cpu, cuda, cuda:1, ... (default: cuda if a GPU is found, else cpu).", "auto")
    no_capture: bool = option("On a GPU: do not record the training step as a CUDA graph.", False)
    compile: Literal["auto", "on", "off", "dynamic"] = option(
        "Fuse operations with torch.compile, which can take about a minute for each new shape. auto: compile on a GPU "
        "if the remaining runs save more time than compilation takes; deterministic runs, and networks without "
        "measured costs, from 1,000 minibatches on. dynamic: one code for all minibatch sizes, as auto chooses for "
        "sweeps with several of them (default: auto).",
        "auto",
    )
    trajectories: Literal["auto", "device", "bf16", "host"] = option(
        "Where to keep trajectories and inner optimizer states: device, bf16 (on the device, half the memory), host "
        "(pinned memory), or auto (default: host if they do not fit on the device).",
        "auto",
    )
    memory_gb: float | None = option(
        "Device memory for weights and trajectories, in GiB (default: half of the free memory).",
        None,
        least=0,
        most=10**6,
    )
    micro_batch: int | None = option(
        "Keep the activations of at most this many samples in memory and compute them again in the backward pass. The "
        "result is the same up to rounding (default: keep those of the whole minibatch).",
        None,
        least=1,
        most=MOST_SAMPLES,
    )
    deterministic: bool = option(
        "On a GPU: use only deterministic kernels, so that repeated and resumed runs give the same bits; slower, and "
        "an operation without such a kernel is an error. On a CPU, runs with the same --threads always give the same "
        "bits.",
        False,
    )
    threads: int = option(
        "CPU threads of each process (default: 1). Results can differ by rounding.", 1, least=1, most=MOST_PROCESSES
    )


@dataclass(frozen=True, kw_only=True)
class Execution:
    """Execution of runs: data, weights, checkpoints, trackers and device."""

    title: ClassVar[str] = "data, weights and records"
    data: Data = group(Data)
    weights: Path | None = option(WEIGHTS, None, metavar="FILE")
    checkpoint_seconds: float = option(
        "Minimum time between two checkpoints, in seconds.", 30.0, least=0, most=MOST_SECONDS
    )
    track: tuple[str, ...] = option(
        "Also log to tensorboard, wandb or mlflow; may be repeated (default: none).",
        (),
        repeat=True,
        metavar="TRACKER",
        complete="trackers",
    )
    device: Device = group(Device)


@dataclass(frozen=True, kw_only=True)
class FixedNetwork:
    """Location of the data, weights and device of a network that is not trained."""

    title: ClassVar[str] = "data, weights and device"
    data: Data = group(Data)
    weights: Path | None = option(WEIGHTS, None, metavar="FILE")
    device: str = option("cpu, cuda, cuda:1, ... (default: cuda if a GPU is found, else cpu).", "auto")

    def make_execution(self) -> Execution:
        """Return these options with the defaults of those for training."""
        return Execution(data=self.data, weights=self.weights, device=Device(device=self.device))


@dataclass(frozen=True, kw_only=True)
class Slurm:
    """Jobs of a Slurm cluster."""

    title: ClassVar[str] = "with --executor slurm"
    jobs: int = option("Number of jobs, which share the runs.", 1, least=1, most=MOST_PROCESSES)
    partition: str | None = option("Partition of the jobs (default: that of the cluster).", None)
    time_limit: int = option(
        "Time limit of a job, in minutes. Before it ends, its runs are saved and it is queued again.",
        240,
        least=5,
        most=10**6,
    )
    gpus_per_job: int | None = option(
        "GPUs of a job; each GPU trains its own runs (default: 1 with --device cuda, else 0).", None, least=0, most=64
    )
    slurm: tuple[str, ...] = option(
        "Other parameter of submitit or sbatch, such as account=lab or mem_gb=32; may be repeated (default: none).",
        (),
        repeat=True,
        metavar="NAME=VALUE",
    )


@dataclass(frozen=True, kw_only=True)
class Scheduling:
    """Distribution of many runs over processes or machines."""

    title: ClassVar[str] = "execution of many runs"
    executor: Literal["local", "ray", "slurm"] = option(
        "local: processes of this machine; ray: a Ray cluster; slurm: jobs of a Slurm cluster.", "local"
    )
    address: str | None = option("Address of the Ray cluster (default: start one on this machine).", None)
    workers: int = workers_option()
    retry_failed: bool = option("Run failed trials again (default: report them and skip them).", False)
    skip_model_save: bool = option(
        "Delete the model of each run when its metrics are written, to save disk space. All tables and reports stay "
        "the same; pogm soup, ensemble, predict, evaluate and export need models.",
        False,
    )
    slurm: Slurm = group(Slurm)

    def make_executor(self) -> "Execute":
        """Return the executor that the options choose.

        Raises:
            UsageError: If options of one executor are given with another.
        """
        from pogm.benchmark.executors.waiting_trials import executor

        if self.executor != "slurm" and self.slurm != Slurm():
            raise UsageError(
                f"Expected {' '.join(self._slurm_flags())} only with --executor slurm; found --executor "
                f"{self.executor}. Add --executor slurm, or leave the options out."
            )
        return executor(self.executor, self.workers, self.address, asdict(self.slurm))

    def set_kept_models(self, run_options: "RunOptions") -> "RunOptions":
        """Return options of the runner that keep the models of finished runs, or delete them."""
        return replace(run_options, keep_models=not self.skip_model_save)

    def _slurm_flags(self) -> list[str]:
        names = [field.name for field in fields(Slurm)]
        changed = [name for name in names if getattr(self.slurm, name) != getattr(Slurm(), name)]
        return [f"--{name.replace('_', '-')}" for name in changed]


@dataclass(frozen=True, kw_only=True)
class Distributed:
    """Division of one run over the processes that torchrun started."""

    title: ClassVar[str] = "under torchrun"
    spread: Literal["auto", "domains", "samples", "both"] | None = option(
        "Axes to divide among the processes (default: auto = domains, then samples).", None
    )
    timeout_seconds: float = option(
        "Maximum time to wait for another process, in seconds.", 600.0, least=0.001, most=MOST_SECONDS
    )


@dataclass(frozen=True, kw_only=True)
class Hyperparameters:
    """Hyperparameters, groups of images, and the treatment of unreadable images."""

    title: ClassVar[str] = "hyperparameters and samples"
    settings: tuple[str, ...] = option(
        "Set a hyperparameter of all algorithms, or of one: ALGORITHM.NAME=VALUE; may be repeated (default: the "
        "defaults that pogm list algorithms NAME shows).",
        (),
        flag="--set",
        repeat=True,
        metavar="NAME=VALUE",
        complete="settings",
    )
    group_column: str | None = option(
        "Column of a metadata file or table with the patient, video or slide of each sample. The samples of a group "
        "stay in one split (default: the column group, if there is one).",
        None,
        flag="--group",
        metavar="COLUMN",
    )
    task: Literal["classification", "regression"] | None = option(
        "Task of a table or of a file of arrays (default: regression if the label is a number with more than 20 "
        "different values).",
        None,
    )
    on_bad_image: Literal["refuse", "skip", "pad"] | None = option(
        "Treatment of an image that cannot be read: refuse to train, skip it, or pad (keep what was decoded, "
        "fill the rest) (default: refuse).",
        None,
    )

    def add_to(self, dataset: str) -> str:
        """Return the name of a dataset with --group and --task written after its path: FILE:group=COLUMN,task=TASK."""
        from pogm.data.dataset_paths import add_options

        return add_options(dataset, group=self.group_column, task=self.task)


@dataclass(frozen=True, kw_only=True)
class Training:
    """Length and precision of a run."""

    title: ClassVar[str] = "length and precision"
    steps: int | None = option(
        "Number of minibatches of each training domain (default: that of the dataset).", None, least=1, most=MOST_STEPS
    )
    evaluate_every: int | None = option(
        "Number of minibatches between two evaluations (default: that of the dataset).", None, least=1, most=MOST_STEPS
    )
    evaluation: str = option(
        "Samples that evaluations predict: all; or selection: without the samples that the run trains on, which no "
        "rule of model selection uses. Faster, but the curves have no accuracy on the training samples.",
        "all",
    )
    precision: str = option("Precision of the network: fp32, tf32, bf16 or fp64. It is part of the trial.", "fp32")


@dataclass(frozen=True, kw_only=True)
class Planning:
    """Show the plan instead of running it."""

    title: ClassVar[str] = "plan only"
    dry_run: bool = option(
        "Count the runs and stop; needs no data, weights or GPU. Shows the time if similar runs are finished and, for "
        "a sweep, GPU hours on an H200 and disk space.",
        False,
    )
    estimate: bool = option(
        "Like --dry-run, but also train a few steps of each kind of run to estimate time and memory. Reads the data.",
        False,
    )

    @property
    def only_plan(self) -> bool:
        """True if the command shows its plan and stops."""
        return self.dry_run or self.estimate

    @property
    def only_count(self) -> bool:
        """True if the plan must not need data, weights or a GPU."""
        return self.dry_run and not self.estimate

    def usable_weights(self, path: Path | None) -> Path | None:
        """Return the file of --weights; None in a dry run if it does not exist, because a plan does not need it."""
        return None if path is not None and self.only_count and not path.is_file() else path
