"""What the commands that carry out trials share: their options understood, data prepared, outcomes told."""

import argparse
import math
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from pogm._system.errors import UsageError
from pogm.benchmark.plan.parsing import data_folder
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.estimate import Estimate, duration
from pogm.benchmark.runs.executors import Outcome
from pogm.benchmark.runs.progress import tracked
from pogm.benchmark.runs.runner import Settings
from pogm.core.hyperparameters import fields
from pogm.distributed.world import Launch
from pogm.engine.session import Engine
from pogm.models import build_features
from pogm.models.weights import RANDOM, weights_of


def settings_of(options: argparse.Namespace, datasets: Sequence[str] = ()) -> Settings:
    """How to carry out what is asked for, checked."""
    if options.threads < 1:
        raise UsageError(f"Expected --threads of at least 1; found {options.threads}. Leave it out.")
    if not 0 <= options.checkpoint_seconds < math.inf:
        raise UsageError(
            f"Expected --checkpoint-seconds of at least 0; found {options.checkpoint_seconds}. Leave it out."
        )
    engine = Engine(
        device=options.device,
        capture=not options.no_capture,
        compile=options.compile,
        trajectories=options.trajectories,
        memory_gb=options.memory_gb,
        deterministic=options.deterministic,
    )
    data = data_folder(datasets, options.data.expanduser() if options.data else None)
    weights = options.weights.resolve() if options.weights else None
    trackers = tuple(dict.fromkeys(options.track))
    return Settings(data, engine, options.threads, options.checkpoint_seconds, weights, trackers)


def among_others(options: argparse.Namespace, settings: Settings) -> Settings:
    """The settings of one of torchrun's processes; where there is no torchrun, as they are."""
    launch = Launch.from_environment(options.timeout_seconds, options.spread or "auto")
    if launch is None:
        if options.spread:
            raise UsageError(
                f"Expected torchrun to start the processes for --spread {options.spread}; found this one alone. "
                "Write: torchrun --nproc-per-node 4 -m pogm run ..."
            )
        return settings
    engine = settings.engine
    if engine.torch_device().type == "cuda":
        if ":" in engine.device and launch.world_size > 1:
            raise UsageError(f"Expected a GPU for each process; found --device {engine.device} for all. Pass cuda.")
        engine = replace(engine, device=f"cuda:{launch.local_rank}")
    return replace(settings, engine=engine, launch=launch)


def chosen(options: argparse.Namespace) -> tuple[str, ...]:
    """What --set, --weights and --on-bad-image say, as texts like "kappa=0.1"."""
    texts = list(options.set)
    if options.on_bad_image:
        texts.append(f"on_bad_image={options.on_bad_image}")
    if options.weights:
        texts.append(f"weights={weights_of(options.weights)}")
    return tuple(texts)


def check_alone(what: str) -> None:
    """Refuse to do in each of torchrun's processes what one of them should."""
    launch = Launch.from_environment()
    if launch is not None and launch.world_size > 1:
        raise UsageError(
            f"Expected pogm run or the resume of one run under torchrun, which train one model; found {what} and "
            f"{launch.world_size} processes. Start it without torchrun."
        )


def check_counts(options: argparse.Namespace, *names: str) -> None:
    """Refuse options that count something, and are below 1."""
    for name in names:
        if getattr(options, name) < 1:
            raise UsageError(f"Expected --{name} of at least 1; found {getattr(options, name)}. Leave it out.")


def prepare(trials: Sequence[Trial], settings: Settings) -> None:
    """Make the caches of all datasets, once and with a bar, before many processes want them."""
    for dataset in {trial.dataset for trial in trials}:
        dataset.prepare(settings.data, partial(tracked, what="images"))


def mention_late_schedules(trial: Trial) -> None:
    """Warn about a penalty whose schedule begins after the last minibatch of the run."""
    name = type(trial.algorithm).__name__
    for field in fields(trial.algorithm):
        if field.name.endswith("anneal_iters") and getattr(trial.algorithm, field.name) >= trial.steps:
            print(
                f"pogm: {name}.{field.name} is {getattr(trial.algorithm, field.name)}, and the run has {trial.steps} "
                f"minibatches: its penalty never gets its weight. For example: --set {name}.{field.name}="
                f"{trial.steps // 3}",
                file=sys.stderr,
            )


def check_weights_exist(trials: Sequence[Trial], settings: Settings) -> None:
    """Read the first weights of every network once, so that a missing or unfit file fails before the first run."""
    settings.enter()
    for network, weights in dict.fromkeys((t.training.network, t.training.weights) for t in trials):
        if weights != RANDOM:
            build_features(network, (3, 224, 224), weights=weights)


def show_estimates(kinds: Sequence[Estimate], runs: int, workers: int) -> None:
    """Say how long runs will take, kind by kind and together."""
    for kind in kinds:
        print(f"{kind.dataset}  {kind.label}  {kind.runs} runs  {duration(kind.seconds)}  {kind.memory_gb:.1f} GB each")
    total = duration(sum(kind.seconds for kind in kinds) / workers)
    print(f"{runs} runs, about {total} on {workers} process{'es' * (workers > 1)}.")


def all_done(outcomes: Iterable[Outcome], count: int, folder: Path) -> bool:
    """Wait for the runs of a folder, with a bar; say what failed, if anything did."""
    failed = [outcome for outcome in tracked(outcomes, count, "runs") if outcome.error is not None]
    for outcome in failed:
        place = f"{folder / outcome.trial.id}: {outcome.trial.label} on {outcome.trial.dataset.title}"
        print(f"pogm: {place} failed: {outcome.error}", file=sys.stderr)
    return not failed
