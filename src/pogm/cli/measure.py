"""What ``pogm measure`` does: train algorithms on the same data and seeds, and measure every round of them."""

import argparse
import sys
from collections.abc import Sequence
from dataclasses import replace

from pogm._system.errors import UsageError
from pogm._system.files import write_whole
from pogm.benchmark.plan.parsing import Combination, check_settings, dataset_of, settings_for, trial_of
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.measurement_table import measure_table, rounds_csv
from pogm.benchmark.results.measurements import measured
from pogm.benchmark.results.records import printable, read_runs
from pogm.benchmark.runs.directory import save_plan
from pogm.benchmark.runs.estimate import duration, estimates
from pogm.benchmark.runs.executors import run_all
from pogm.benchmark.runs.runner import Settings
from pogm.cli.options import all_done, check_counts, chosen, mention_late_schedules, prepare, settings_of
from pogm.diagnostics import Probe

ROUNDS = "measures.csv"


def measure(options: argparse.Namespace) -> int:
    """Measure, round by round, how an algorithm's steps agree with what each domain alone would do."""
    settings = settings_of(options, [options.dataset])
    trials = plan(options, settings)
    if options.dry_run:
        _show_costs(trials, settings, options)
        return 0
    prepare(trials, settings)
    save_plan(trials, options.out)
    done = all_done(run_all(trials, options.out, settings, options.workers), len(trials), options.out)
    show(trials, options)
    return 0 if done else 1


def plan(options: argparse.Namespace, settings: Settings) -> list[Trial]:
    """Every algorithm with every seed; a seed's data, first weights and minibatches are the same for all of them."""
    check_counts(options, "seeds", "workers", "every")
    if len(set(options.algorithms)) < len(options.algorithms):
        raise UsageError(f"Expected each of --algorithms once; found {', '.join(options.algorithms)}. Leave one out.")
    probe = Probe(
        every=options.every,
        lag=Probe.each(options.every).lag if options.lag is None else options.lag,
        cyclic=options.cyclic,
        target=options.target,
        divergence=options.divergence,
    )
    data, texts = dataset_of(options.dataset, settings.data), chosen(options)
    kinds = {name: Combination(name, tuple(options.modifiers), data) for name in options.algorithms}
    check_settings(texts, list(kinds.values()))
    trials = [
        trial_of(
            options.dataset,
            algorithm,
            options.test_domain or ["0"],
            data=settings.data,
            modifiers=options.modifiers,
            settings=settings_for(kinds[algorithm], texts),
            steps=options.steps,
            evaluate_every=options.evaluate_every,
            seed=seed,
            precision=options.precision,
            probe=probe,
        )
        for seed in range(options.seeds)
        for algorithm in options.algorithms
    ]
    for trial in trials[: len(options.algorithms)]:
        mention_late_schedules(trial)
    return trials


def _show_costs(trials: Sequence[Trial], settings: Settings, options: argparse.Namespace) -> None:
    for trial in trials:
        print(f"{trial.id}  {trial.dataset.title}  {trial.label}  seed {trial.seed}  {trial.steps} minibatches")
    plain = estimates([replace(trial, probe=Probe()) for trial in trials], settings)
    at_once = options.workers if settings.engine.torch_device().type == "cpu" else 1
    total = 0.0
    for with_it, without in zip(estimates(trials, settings), plain, strict=True):
        more = with_it.seconds / without.seconds
        print(f"{with_it.label}: {duration(with_it.seconds)}, {more:.1f} times as long as without measuring")
        total += with_it.seconds
    print(f"{len(trials)} runs, about {duration(total / at_once)} on {at_once} process{'es' * (at_once > 1)}.")


def show(trials: Sequence[Trial], options: argparse.Namespace) -> None:
    """Print the table of what was measured; write every round into a file."""
    folders = [options.out / trial.id for trial in trials]
    runs = {run.id: run for run in read_runs(*(folder for folder in folders if folder.is_dir()))}
    done = [runs[trial.id] for trial in trials if trial.id in runs and runs[trial.id].done]
    found = [(run, m) for run in done if (m := measured(run)) is not None]
    if not found:
        raise UsageError(
            f"Expected a finished run with a measured round; found none in {options.out}. "
            f"If they did not fail, measure more often than every {options.every} rounds, or train for longer."
        )
    first, run = trials[0], found[0][0]
    held_out = printable(run.held_out)
    how_often = "every round" if options.every == 1 else f"one round in {options.every}"
    title = f"{printable(run.dataset)}, held out {held_out}; {how_often} measured"
    table = measure_table(found, title, notes(first))
    write_whole(options.out / ROUNDS, rounds_csv(found).encode())
    print({"text": table.text, "csv": table.csv, "json": table.json}[options.format](), end="")
    print(f"Every round: {options.out / ROUNDS}", file=sys.stderr)


def notes(trial: Trial) -> list[str]:
    """How it was measured, and what that costs."""
    probe, K, T = trial.probe, len(trial.train_domains), len(trial.test_domains) * trial.probe.target
    lag = f"since a snapshot renewed every {probe.lag} rounds" if probe.cyclic else f"τ = {probe.lag} rounds"
    held_out = f" and {T} of held-out domains, whose labels the run never sees," if T else ""
    every = "each round" if probe.every == 1 else f"one round in {probe.every}"
    looks = f", and {K}² forward passes compare their predictions" * probe.divergence
    cost = (
        f"Cost: in {every}, {K} copies of the model{held_out} take the round's minibatches once more, one backward "
        f"pass each{looks}. The run itself is the same to the last bit as without."
    )
    return [f"The lag is {lag}; mean over rounds in which a measurement is defined.", cost]
