"""Functions shared by commands that train: options of the runner, checks, preparation of data.

This module imports torch. Commands import it when they run, so that --help stays fast.
"""

import math
import shlex
import sys
from collections.abc import Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pogm._system.errors import PogmError, UsageError
from pogm._system.files import read_json
from pogm._system.messages import log, log_time, note, suggest
from pogm._system.terminal import message_text, print_line
from pogm.benchmark.plan.datasets import data_folder
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.progress.estimate import duration, estimates
from pogm.benchmark.progress.run_progress import RunProgress, show_image_progress
from pogm.benchmark.results.record_digest import DONE, RECORDS
from pogm.benchmark.results.records import accuracy, is_final, read_records
from pogm.benchmark.results.selection import UNDEFINED
from pogm.benchmark.runs.directory import read_provenance
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.benchmark.runs.selected_model import DESCRIPTION, MODEL
from pogm.cli.options import Distributed, Execution, Hyperparameters
from pogm.core.hyperparameters import fields
from pogm.data.datasets.array_file import ArrayFile
from pogm.data.datasets.base import split_domain
from pogm.distributed.world import Launch
from pogm.engine.session import Engine
from pogm.models import build_features, has_batch_norm
from pogm.models.weights import RANDOM, find_network, hash_weights


def make_run_options(options: Execution, datasets: Sequence[str] = ()) -> RunOptions:
    """Return validated options of the runner.

    Args:
        options: Options of the command line.
        datasets: Datasets of the command line. One given as a path determines the data folder.

    Raises:
        UsageError: If the datasets are not in one folder.
    """
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


def train_run(trial: Trial, folder: Path, run_options: RunOptions) -> None:
    """Run one trial with its progress: minibatches, time left, and a line for each evaluation."""
    if not run_options.is_first_process:
        run(trial, folder, run_options)
        return
    if (folder / DONE).exists():  # the runner checks that the folder belongs to the trial
        run(trial, folder, run_options)
        note(f"{folder} is done already.")
        return
    counts_rounds = run_options.engine.torch_device().type == "cpu"
    with RunProgress(trial, counts_rounds) as progress:
        run(trial, folder, run_options, progress.on_record, progress.on_round)


def left_to_run(trials: Iterable[Trial], folder: Path) -> list[Trial]:
    """Return the trials that have no finished run in a folder."""
    return [trial for trial in trials if not (folder / trial.id / DONE).exists()]


def count_trained(folder: Path) -> int:
    """Return the number of minibatches of a run up to its last evaluation."""
    return max((record["step"] + 1 for record in read_records(folder / RECORDS) if not is_final(record)), default=0)


def print_summary(trial: Trial, folder: Path, run_options: RunOptions) -> None:
    """Print the end of a run on standard error: selected step, accuracies, the model, and commands to use it."""
    if run_options.is_first_process:
        lines, commands = _summarise(trial, folder)
        for line in lines:
            print_line(line, file=sys.stderr)
        suggest(commands)


def run_document(trial: Trial, folder: Path) -> dict[str, Any]:
    """Return the end of a run for --json: the trial, the selected step, its accuracies, and the model."""
    names = trial.dataset.domains
    found: dict[str, Any] = {
        "folder": folder,
        "trial": trial.id,
        "label": trial.label,
        "dataset": trial.dataset.title,
        "test_domains": [names[i] for i in trial.test_domains],
        "done": (folder / DONE).exists(),
        "steps": trial.steps,
        "trained_steps": count_trained(folder),
        "selected": None,
        "held_out": [],
        "model": None,
    }
    if (folder / MODEL / DESCRIPTION).exists():
        selection = read_json(folder / MODEL / DESCRIPTION, 1 << 26)["selection"]
        found |= {"selected": selection, "model": folder / MODEL}
        images = read_provenance("images", folder) or {}
        for record in [r for r in read_records(folder / RECORDS) if r["step"] == selection["step"]][-1:]:
            found["held_out"] = [
                {
                    "domain": names[i],
                    "r2" if trial.dataset.task == "regression" else "accuracy": accuracy(record, "in", i),
                    "images": images["in"][i] if images else None,
                }
                for i in trial.test_domains
            ]
    return found


def _summarise(trial: Trial, folder: Path) -> tuple[list[str], list[str]]:
    """Return the lines of the summary of a finished run, and commands to continue with.

    The accuracy at a held-out domain is that of the *in* split, as in tables. Runs of earlier versions have no selected
    model, or no numbers of images; the summary leaves them out.
    """
    name, document = shlex.quote(str(folder)), run_document(trial, folder)
    lines, commands = [], []
    if selection := document["selected"]:
        images = read_provenance("images", folder) or {}
        score, form = ("r2", "R² {:.3f}") if trial.dataset.task == "regression" else ("accuracy", "{:.1%}")
        lines.append(
            f"Selected: step {selection['step']} of {trial.steps - 1}, by {selection['rule']}: "
            + form.format(selection["validation"])
            + _number_of_samples([images["out"][i] for i in trial.train_domains] if images else [])
        )
        for one in document["held_out"]:
            if not math.isnan(one[score]):
                counts = [] if one["images"] is None else [one["images"]]
                lines.append(f"Held out: {one['domain']} {form.format(one[score])}" + _number_of_samples(counts))
            elif score == "r2" and trial.evaluation != "validation":
                lines.append(f"Held out: {one['domain']}, {UNDEFINED}: all targets are equal")
        lines.append(f"Model: {document['model']}")
        commands += model_commands(trial, folder)
    if trial.test_domains:
        commands.append(f"pogm report {name}")
    return lines, commands


def model_commands(trial: Trial, folder: Path) -> list[str]:
    """Return the commands that can use the model of a run or of a combination of runs."""
    name, shape = shlex.quote(str(folder)), trial.dataset.input_shape
    is_image = len(shape) == 3
    commands = []
    if isinstance(trial.dataset, ArrayFile):
        commands += [f"pogm evaluate {name} FILE", f"pogm predict {name} FILE --csv predictions.csv"]
    elif is_image and shape[0] in (1, 3):  # images that can be read from files
        commands += [f"pogm evaluate {name} NEW_SITE", f"pogm predict {name} IMAGES --csv predictions.csv"]
    if is_image and not trial.adapts:
        commands.append(f"pogm export {name} --to onnx")
    return commands


def _number_of_samples(counts: Sequence[int]) -> str:
    return f" ({sum(counts)} samples)" if counts else ""


def show_run(trial: Trial, folder: Path, run_options: RunOptions) -> None:
    """Print on standard error what a run would do: sizes, and the time that a few measured steps predict.

    The network has random weights, which does not change the time, so that no weights are needed. If the data are
    missing, the reason is printed instead.
    """
    if not run_options.is_first_process:
        return
    training, trained = trial.training, trial.train_domains
    note(f"{trial.label} on {trial.dataset.title}, trial {trial.id}, into {folder}")
    print_line(
        f"{trial.steps} minibatches of {training.batch_size} samples from each of {len(trained)} domains, with "
        f"{len(trial.schedule.points())} evaluations; {training.network}, {trial.precision}",
        file=sys.stderr,
    )
    done = count_trained(folder)
    if done:
        note(f"{done} of {trial.steps} minibatches are trained already.")
    sample = replace(trial, training=replace(training, weights=RANDOM))
    try:
        prepare([trial], run_options)
        for number, domain in enumerate(trial.task(run_options.data).load()):
            name, is_trained = trial.dataset.domains[number], number in trained
            inside, outside = split_domain(domain, number, trial.trial_seed, name, is_trained, trial.samples)
            use = "training" if is_trained else "held out"
            note(f"{name}: {use}, {len(inside)} + {len(outside)} samples (in + out split)")
        (found,) = estimates([sample], run_options)
    except PogmError as error:
        print(f"pogm: The time is not known. {message_text(error)}", file=sys.stderr)
        return
    left = found.seconds * (1 - done / trial.steps)
    note(f"Time: about {duration(left)}; memory: {found.memory_gb:.1f} GB.")
