"""Functions shared by commands that train: options of the runner, settings, checks, preparation of data.

This module imports torch. Commands import it when they run, so that --help stays fast.
"""

import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path

from pogm._system.errors import UsageError
from pogm._system.messages import log, log_time
from pogm._system.terminal import print_line
from pogm.benchmark.plan.datasets import data_folder, find_data_path
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.progress.run_progress import show_image_progress
from pogm.benchmark.results.record_digest import DONE
from pogm.benchmark.runs.runner import RunOptions
from pogm.cli.options import Distributed, Execution, Hyperparameters
from pogm.core.hyperparameters import fields
from pogm.data.dataset_paths import split_options
from pogm.data.datasets import is_named_dataset
from pogm.distributed.world import Launch
from pogm.engine.session import Engine
from pogm.models import build_features, has_batch_norm
from pogm.models.weights import RANDOM, find_network, hash_weights


def make_run_options(options: Execution, datasets: Sequence[str] = (), out: Path | None = None) -> RunOptions:
    """Return validated options of the runner.

    Args:
        options: Options of the command line.
        datasets: Datasets of the command line. One given as a path determines the data folder.
        out: Folder that the command writes, which must be outside the datasets.

    Raises:
        UsageError: If the datasets are not in one folder, or the output is in the folder of one.
    """
    if out is not None:
        check_outside(out, datasets, options.data.folder)
    device = options.device
    engine = Engine(
        device=device.device,
        capture=not device.no_capture,
        compile=device.compile,
        trajectories=device.trajectories,
        memory_gb=device.memory_gb,
        micro_batch=device.micro_batch,
        deterministic=device.deterministic,
    )
    data = data_folder(datasets, options.data.folder)
    weights = options.weights.resolve() if options.weights else None
    trackers = tuple(dict.fromkeys(options.track))
    log.info("Device %s; data folder %s; weights %s", engine.device, data, weights or "as published")
    return RunOptions(data, engine, device.threads, options.checkpoint_seconds, weights, trackers)


def check_outside(out: Path, datasets: Sequence[str], data: Path | None) -> None:
    """Raise an error if a folder of images contains the output, which would count as one of its domains or classes."""
    for name in datasets:
        images = None if is_named_dataset(name) else find_data_path(split_options(name)[0], data)
        if images is not None and images.is_dir() and out.resolve().is_relative_to(images.resolve()):
            raise UsageError(
                f"Expected a folder in --out outside the images of {name}, where it would count as a domain; found "
                f"{out}. Choose another folder."
            )


def add_launch(run_options: RunOptions, options: Distributed) -> RunOptions:
    """Return the options with the rank of this process under torchrun; without torchrun, return them unchanged."""
    launch = Launch.from_environment(options.timeout_seconds, options.spread or "auto")
    if launch is None:
        if options.spread:
            raise UsageError(
                f"Expected several processes, started by torchrun, for --spread {options.spread}; found only "
                "this one. Start them with: torchrun --nproc-per-node 4 -m pogm run ..."
            )
        return run_options
    engine = run_options.engine
    if engine.torch_device().type == "cuda":
        if ":" in engine.device and launch.world_size > 1:
            raise UsageError(f"Expected a GPU for each process; found --device {engine.device} for all. Pass cuda.")
        engine = replace(engine, device=f"cuda:{launch.local_rank}")
    return replace(run_options, engine=engine, launch=launch)


def setting_texts(options: Hyperparameters, weights: Path | None) -> tuple[str, ...]:
    """Return --set, --on-bad-image and --weights as texts like "kappa=0.1"."""
    texts = list(options.settings)
    if options.on_bad_image:
        texts.append(f"on_bad_image={options.on_bad_image}")
    if weights:
        texts.append(f"weights={hash_weights(weights)}")
    return tuple(texts)


def network_settings(options: Hyperparameters, weights: Path | None, network: str | None) -> tuple[str, ...]:
    """Return `setting_texts` and the network: that of the option or, for a known weights file, the one it fits."""
    texts = setting_texts(options, weights)
    if network is None and weights and not any(text.startswith("network=") for text in texts):
        network = find_network(hash_weights(weights))
    return (*texts, f"network={network}") if network else texts


def check_single_process(what: str) -> None:
    """Raise an error if torchrun has started several processes."""
    launch = Launch.from_environment()
    if launch is not None and launch.world_size > 1:
        raise UsageError(
            f"Expected pogm run or the resume of one run under torchrun, which train one model; found {what} and "
            f"{launch.world_size} processes. Start it without torchrun."
        )


def prepare(trials: Sequence[Trial], run_options: RunOptions) -> None:
    """Check networks and data, and write image caches, with a progress bar, before processes need them.

    Raises:
        UsageError: If a network with random weights has batch norm that keeps its first statistics.
        DataError: If the files of a dataset are missing.
    """
    for network in {t.training.network for t in trials if t.training.weights == RANDOM and t.training.freeze_bn}:
        if has_batch_norm(network):
            raise UsageError(
                f"Expected batch norm that learns its statistics, for {network} with random weights; found "
                "freeze_bn=true, which keeps means of 0 and variances of 1. Give weights with --weights, or add --set "
                "freeze_bn=false."
            )
    for dataset in {trial.dataset for trial in trials}:
        with log_time("Prepared %s", dataset.title):
            dataset.prepare(run_options.data, show_image_progress)


def warn_late_schedules(trial: Trial) -> None:
    """Warn about a penalty, or another part of a method, that begins after the last minibatch of the run."""
    for part in (trial.algorithm, *trial.modifiers):
        name, is_modifier = type(part).__name__, part is not trial.algorithm
        what = "what begins then" if is_modifier else "its penalty weight"
        for field in fields(part):
            late = field.name.endswith("anneal_iters") or (is_modifier and field.name == "start_step")
            if late and getattr(part, field.name) >= trial.steps:
                print_line(
                    f"pogm: {name}.{field.name} is {getattr(part, field.name)}, and the run has {trial.steps} "
                    f"minibatches: {what} is never used. For example: --set {name}.{field.name}={trial.steps // 3}",
                    file=sys.stderr,
                )


def check_weights_exist(trials: Iterable[Trial], run_options: RunOptions) -> None:
    """Read the weights of every network once, so that a missing or unsuitable file is found before the first run."""
    run_options.enter()
    for network, weights in dict.fromkeys((t.training.network, t.training.weights) for t in trials):
        if weights != RANDOM:
            build_features(network, (3, 224, 224), weights=weights)


def left_to_run(trials: Iterable[Trial], folder: Path) -> list[Trial]:
    """Return the trials that have no finished run in a folder."""
    return [trial for trial in trials if not (folder / trial.id / DONE).exists()]
