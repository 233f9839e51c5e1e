"""``pogm measure``: how the steps of algorithms agree with the training domains."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pogm._system.errors import UsageError
from pogm._system.messages import note
from pogm._system.terminal import print_line
from pogm.cli.json_output import Output
from pogm.cli.options import (
    MOST_REPETITIONS,
    MOST_STEPS,
    Execution,
    Hyperparameters,
    Planning,
    Training,
    modifiers_option,
    workers_option,
)
from pogm.cli.parser import Command, group, option

if TYPE_CHECKING:
    from pogm.benchmark.plan.trial import Trial
    from pogm.benchmark.runs import runner

ROUNDS = "measures.csv"


@dataclass(frozen=True, kw_only=True)
class Measure(Command):
    """Measure in every round how the step of an algorithm agrees with the step of each domain alone."""

    trains: ClassVar[bool] = True
    examples: ClassVar[str] = """
pogm measure                                       ERM, Fish, Fishr and POGM on RotatedDigits, three seeds each
pogm measure --algorithms ERM POGM --dataset ColoredDigits --test-domain=-90% --target --divergence
pogm measure --algorithms Fishr POGM --set POGM.kappa=0.1 --set Fishr.penalty_anneal_iters=50 --with Mixup
pogm measure --dataset VLCS --data ~/data --every 10 --lag 20 --set network=resnet18 --out runs/vlcs"""
    notes: ClassVar[str] = (
        "A --set without the name of an algorithm applies to all algorithms.\n"
        "The same command again continues where it stopped, and only prints if all runs are done.\n"
        "Measuring does not change a run; its cost is printed below the table."
    )

    algorithms: tuple[str, ...] = option(
        "Names of algorithms (default: ERM Fish Fishr POGM).",
        ("ERM", "Fish", "Fishr", "POGM"),
        metavar="NAME",
        complete="algorithms",
    )
    dataset: str = option("Name of a dataset, or a folder of images.", "RotatedDigits", complete="datasets")
    test_domain: tuple[str, ...] = option(
        "Domains to hold out, by name or by number from 0 (default: 0).",
        (),
        metavar="DOMAIN",
    )
    modifiers: tuple[str, ...] = modifiers_option()
    settings: Hyperparameters = group(Hyperparameters)
    seeds: int = option("Number of runs of each algorithm, with the seeds 0, 1, ...", 3, least=1, most=MOST_REPETITIONS)
    every: int = option("Measure every N-th round (default: 1 = every round).", 1, least=1, most=MOST_STEPS)
    lag: int | None = option(
        "Lag τ of the invariant cosine, in rounds (default: 10, or the next multiple of --every).",
        None,
        metavar="ROUNDS",
        least=1,
        most=MOST_STEPS,
    )
    cyclic: bool = option(
        "As the authors' code: compare with a snapshot of the weights that is renewed every --lag rounds.", False
    )
    target: bool = option(
        "Also measure how far the step of the held-out domain is from the convex hull of the others.", False
    )
    divergence: bool = option(
        "Also measure how much the predictions of the domains' copies of the model differ.", False
    )
    training: Training = group(Training)
    out: Path = option("Folder for the runs.", Path("runs/measure"), metavar="FOLDER")
    format: Literal["text", "csv", "json"] = option("Format of the table on standard output.", "text")
    workers: int = workers_option()
    planning: Planning = group(Planning)
    execution: Execution = group(Execution)
    output: Output = group(Output)

    def run(self) -> int:
        """Train what is left, print the table, and write every measured round to a file."""
        from pogm.benchmark.executors.local import run_all
        from pogm.benchmark.runs.sweep_directory import save_plan
        from pogm.cli.execution import make_run_options, prepare
        from pogm.cli.results import wait_for_all

        run_options = make_run_options(self.execution, [self.dataset], self.out)
        trials = self.plan(run_options)
        if self.planning.only_plan:
            self._show_plan(trials, run_options)
            return 0
        prepare(trials, run_options)
        save_plan(trials, self.out)
        done = wait_for_all(run_all(trials, self.out, run_options, self.workers), trials, self.out)
        self._show(trials)
        return 0 if done else 1

    def plan(self, run_options: "runner.RunOptions") -> list["Trial"]:
        """Return a trial for every algorithm and seed. Algorithms share data, first weights and minibatches."""
        from pogm.benchmark.plan.combination import Combination, algorithm_names
        from pogm.benchmark.plan.parsing import build_trial
        from pogm.benchmark.plan.settings import check_settings, settings_for
        from pogm.cli.execution import setting_texts, warn_late_schedules
        from pogm.cli.planning import find_planned_dataset
        from pogm.diagnostics import Probe

        algorithms = algorithm_names(self.algorithms)
        if len(set(algorithms)) < len(algorithms):
            raise UsageError(f"Expected each of --algorithms once; found {', '.join(self.algorithms)}. Leave one out.")
        probe = Probe(
            every=self.every,
            lag=Probe.each(self.every).lag if self.lag is None else self.lag,
            cyclic=self.cyclic,
            target=self.target,
            divergence=self.divergence,
        )
        name, reads_images = self.settings.add_to(self.dataset), not self.planning.only_count
        data = find_planned_dataset(name, run_options.data, read_images=reads_images)
        if self.divergence and data.task == "regression":
            raise UsageError(
                f"Expected a classification for --divergence, which compares the probabilities of classes; found the "
                f"regression {data.title}. Leave it out."
            )
        texts = setting_texts(self.settings, self.planning.usable_weights(self.execution.weights))
        combinations = {name: Combination(name, self.modifiers, data) for name in algorithms}
        check_settings(texts, list(combinations.values()))
        trials = [
            build_trial(
                data,
                algorithm,
                self.test_domain or ["0"],
                data=run_options.data,
                modifiers=self.modifiers,
                settings=settings_for(combinations[algorithm], texts),
                steps=self.training.steps,
                evaluate_every=self.training.evaluate_every,
                seed=seed,
                precision=self.training.precision,
                evaluation=self.training.evaluation,
                probe=probe,
            )
            for seed in range(self.seeds)
            for algorithm in algorithms
        ]
        for trial in trials[: len(algorithms)]:
            warn_late_schedules(trial)
        return trials

    def _show_plan(self, trials: Sequence["Trial"], run_options: "runner.RunOptions") -> None:
        """Print the runs; with --estimate, also the time with and without measuring."""
        from pogm.benchmark.progress.estimate import duration, estimates
        from pogm.cli.execution import left_to_run
        from pogm.cli.planning import count_trials, read_finished, show_plan
        from pogm.data.datasets.folder import Folder
        from pogm.diagnostics import Probe

        for trial in trials:
            print_line(f"{trial.dataset.title}  {trial.label}  seed {trial.seed}  {trial.steps} minibatches")
        if self.planning.only_count:
            if isinstance(trials[0].dataset, Folder):
                print_line(
                    "Finished runs are not counted: their ids depend on the images, which a dry run does not read."
                )
            finished = read_finished(self.out)
            plan = show_plan(count_trials(trials, finished), self.out, finished, run_options, self.workers)
            self.output.show("measure", plan)
            return
        trials = left_to_run(trials, self.out)
        plain = estimates([replace(trial, probe=Probe()) for trial in trials], run_options)
        at_once = self.workers if run_options.engine.torch_device().type == "cpu" else 1
        total = 0.0
        for measured, unmeasured in zip(estimates(trials, run_options), plain, strict=True):
            ratio = measured.seconds / unmeasured.seconds
            print_line(
                f"{measured.label}: {duration(measured.seconds)}, {ratio:.1f} times as long as without measuring"
            )
            total += measured.seconds
        seconds = total / at_once
        self.output.show("measure", {"estimate": True, "left": len(trials), "seconds": seconds, "workers": at_once})
        print_line(f"{len(trials)} runs, about {duration(total / at_once)} on {at_once} process{'es' * (at_once > 1)}.")

    def _show(self, trials: Sequence["Trial"]) -> None:
        """Print the table of the finished runs and write every measured round to a file."""
        from pogm._system.files import write_atomic
        from pogm.benchmark.results.measurement_table import measure_table, rounds_csv
        from pogm.benchmark.results.measurements import read_measurements
        from pogm.benchmark.results.records import read_runs

        folders = [self.out / trial.id for trial in trials]
        runs = {run.id: run for run in read_runs(*(folder for folder in folders if folder.is_dir()))}
        done = [runs[trial.id] for trial in trials if trial.id in runs and runs[trial.id].done]
        found = [(run, m) for run in done if (m := read_measurements(run)) is not None]
        if not found:
            raise UsageError(
                f"Expected a finished run with a measured round; found none in {self.out}. "
                f"If they did not fail, measure more often than every {self.every} rounds, or train for longer."
            )
        run = found[0][0]
        how_often = "every round" if self.every == 1 else f"one round in {self.every}"
        title = f"{run.dataset}, held out {run.held_out}; {how_often} measured"
        table = measure_table(found, title, describe_cost(trials[0]))
        write_atomic(self.out / ROUNDS, rounds_csv(found).encode())
        form = {"text": table.text, "csv": table.csv, "json": table.json}[self.format]
        document = {"folder": self.out, "table": table.to_dict(), "rounds": self.out / ROUNDS}
        self.output.show("measure", document, lambda: print(form(), end=""))
        note(f"Every round: {self.out / ROUNDS}")


def describe_cost(trial: "Trial") -> list[str]:
    """Return notes below the table: how the rounds were measured, and what that costs."""
    probe, K, T = trial.probe, len(trial.train_domains), len(trial.test_domains) * trial.probe.target
    lag = f"since a snapshot renewed every {probe.lag} rounds" if probe.cyclic else f"τ = {probe.lag} rounds"
    held_out = f" and {T} of held-out domains, whose labels the run never sees," if T else ""
    every = "each round" if probe.every == 1 else f"one round in {probe.every}"
    forward = f", and {K}² forward passes compare their predictions" * probe.divergence
    cost = (
        f"Cost: in {every}, {K} copies of the model{held_out} train on the minibatches of the round once more, one "
        f"backward pass each{forward}. The run itself has the same bits as without measurements."
    )
    return [f"The lag is {lag}; mean over rounds in which a measurement is defined.", cost]


COMMAND = Measure
