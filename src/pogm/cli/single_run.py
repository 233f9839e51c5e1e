"""One run on the command line: its plan, its progress and its results.

This module imports torch. Commands import it when they run.
"""

import math
import shlex
import sys
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from pogm._system.errors import PogmError
from pogm._system.files import read_json
from pogm._system.messages import note, suggest
from pogm._system.terminal import message_text, print_line
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.progress.estimate import duration, estimates
from pogm.benchmark.progress.run_progress import RunProgress
from pogm.benchmark.results.record_digest import DONE, RECORDS
from pogm.benchmark.results.record_file import accuracy, is_final, read_records
from pogm.benchmark.results.selection import UNDEFINED
from pogm.benchmark.runs.provenance import read_provenance
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.benchmark.runs.selected_model import DESCRIPTION, MODEL
from pogm.cli.execution import prepare
from pogm.cli.json_output import Output
from pogm.data.datasets.array_file import ArrayFile
from pogm.data.datasets.base import split_domain
from pogm.models.weights import RANDOM


def train_run(trial: Trial, folder: Path, run_options: RunOptions, output: Output, verb: str) -> None:
    """Run one trial: print its progress with a line for each evaluation, then its summary, or all of it for --json."""
    if not run_options.is_first_process:
        run(trial, folder, run_options)
        return
    if (folder / DONE).exists():  # the runner checks that the folder belongs to the trial
        run(trial, folder, run_options)
        note(f"{folder} is done already.")
    else:
        counts_rounds = run_options.engine.torch_device().type == "cpu"
        with RunProgress(trial, counts_rounds) as progress:
            run(trial, folder, run_options, progress.on_record, progress.on_round)
    output.show(verb, run_document(trial, folder), lambda: _print_summary(trial, folder))


def count_trained(folder: Path) -> int:
    """Return the number of minibatches of a run up to its last evaluation."""
    return max((record["step"] + 1 for record in read_records(folder / RECORDS) if not is_final(record)), default=0)


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


def _print_summary(trial: Trial, folder: Path) -> None:
    """Print on standard error the selected step, the accuracies and the model of a run, and commands to continue with.

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
    for line in lines:
        print_line(line, file=sys.stderr)
    suggest(commands)


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
