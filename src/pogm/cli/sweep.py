"""``pogm sweep``: a comparison of algorithms on datasets."""

from collections import Counter
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar

from pogm.cli.json_output import Output
from pogm.cli.options import (
    MOST_REPETITIONS,
    Execution,
    Hyperparameters,
    Planning,
    Scheduling,
    Training,
    modifiers_option,
    probe_option,
)
from pogm.cli.parser import Command, group, option

if TYPE_CHECKING:
    from pogm.benchmark.plan import sweep as sweeps
    from pogm.benchmark.runs import runner


@dataclass(frozen=True, kw_only=True)
class Sweep(Command):
    """Compare algorithms on datasets: every domain held out once, several configurations, several trials."""

    trains: ClassVar[bool] = True
    examples: ClassVar[str] = """
pogm sweep --algorithms ERM POGM --datasets RotatedDigits --configurations 5 --trials 2 --out runs/sweep
pogm sweep --algorithms ERM Fish Fishr POGM --datasets ColoredMNIST --data ~/data --out runs/cmnist --dry-run
pogm sweep --algorithms ERM POGM --datasets RotatedDigits --configurations 5 --trials 3 --out runs/sweep --allow-change
pogm sweep --algorithms ERM 'ERM + SMA' 'ERM + SWAD' --datasets RotatedDigits --configurations 5 --out runs/averages
pogm sweep --algorithms ERM POGM --datasets RotatedDigits --set lr=1e-3 --set POGM.inner_steps=5 --out runs/set
pogm status runs/sweep"""
    notes: ClassVar[str] = (
        "A --set without the name of an algorithm applies to all algorithms.\n"
        "The same command again, or pogm resume, continues a stopped sweep. With --allow-change and more algorithms,\n"
        "datasets, configurations or trials, it trains only the runs that are missing."
    )

    algorithms: tuple[str, ...] = option(
        "Names of algorithms (see: pogm list algorithms), alone or with modifiers: 'ERM + SWAD'. Methods that differ "
        "only in SMA, EMA, SWAD, WiSEFT, T3A or TENT are trained once.",
        metavar="NAME",
        complete="algorithms",
    )
    datasets: tuple[str, ...] = option(
        "Names of datasets (see: pogm list datasets), or folders of images.", metavar="NAME", complete="datasets"
    )
    modifiers: tuple[str, ...] = modifiers_option()
    settings: Hyperparameters = group(Hyperparameters)
    configurations: int = option(
        "Number of hyperparameter configurations: first the default values, then random draws.",
        20,
        least=1,
        most=10**5,
    )
    trials: int = option(
        "Number of repetitions of everything, with different seeds and splits.", 3, least=1, most=MOST_REPETITIONS
    )
    shared_init: bool = option(
        "Give all runs the same initial weights, and all runs of a trial the same generated data, so that pogm soup "
        "can average them. Minibatches and hyperparameters still differ.",
        False,
    )
    mode: str = option("single: hold out each domain once; full: hold out each pair of domains, too.", "single")
    training: Training = group(Training)
    probe_every: int = probe_option()
    out: Path = option("Folder of the sweep.", metavar="FOLDER")
    allow_change: bool = option(
        "Extend the sweep in --out with the algorithms, datasets, configurations or trials that it does not have; "
        "finished runs are kept. Other settings cannot change.",
        False,
    )
    planning: Planning = group(Planning)
    scheduling: Scheduling = group(Scheduling)
    execution: Execution = group(Execution)
    output: Output = group(Output)

    def run(self) -> int:
        """Run what is left of the sweep, then print the tables and write the report."""
        from pogm.benchmark.plan.trial import check_methods
        from pogm.benchmark.results.record_digest import SWEEP
        from pogm.benchmark.runs.sweep_directory import check_sweep_owner, save_sweep
        from pogm.cli.execution import left_to_run, make_run_options, prepare
        from pogm.cli.planning import show_estimates
        from pogm.cli.results import run_sweep

        run_options = self.scheduling.set_kept_models(make_run_options(self.execution, self.datasets, self.out))
        sweep = self.sweep(run_options)
        if self.planning.usable_weights(self.execution.weights) == self.execution.weights:  # else its hash is unknown
            check_sweep_owner(self.out, sweep, self.allow_change)
        if self.planning.only_count:
            self._show_plan(sweep, run_options)
            return 0
        left = left_to_run(sweep.plan(), self.out)
        if self.planning.estimate:
            self.output.show("sweep", show_estimates(left, run_options, self.scheduling.workers))
            return 0
        if self.allow_change or not (self.out / SWEEP).exists():
            check_methods(left)
        prepare(left, run_options)  # before anything is written
        save_sweep(sweep, self.out, self.allow_change)
        return run_sweep(sweep, self.out, run_options, self.scheduling, "sweep", self.output)

    def sweep(self, run_options: "runner.RunOptions") -> "sweeps.Sweep":
        """Return the sweep. In a dry run no image is read."""
        from pogm.benchmark.plan import sweep as sweeps
        from pogm.cli.execution import setting_texts
        from pogm.cli.planning import find_planned_dataset

        names = [self.settings.add_to(name) for name in self.datasets]
        reads_images = not self.planning.only_count
        return sweeps.Sweep(
            algorithms=self.algorithms,
            datasets=tuple(find_planned_dataset(name, run_options.data, read_images=reads_images) for name in names),
            configurations=self.configurations,
            trials=self.trials,
            mode=self.mode,
            modifiers=self.modifiers,
            settings=setting_texts(self.settings, self.planning.usable_weights(self.execution.weights)),
            steps=self.training.steps,
            evaluate_every=self.training.evaluate_every,
            precision=self.training.precision,
            evaluation=self.training.evaluation,
            probe_every=self.probe_every,
            shared_init=self.shared_init,
        )

    def _show_plan(self, sweep: "sweeps.Sweep", run_options: "runner.RunOptions") -> None:
        """Print the number of runs of each algorithm and dataset, and their time if it is known."""
        from pogm.cli.planning import RunCounts, read_finished, show_plan, trial_kind

        replace(sweep, configurations=1, trials=1).plan()  # checks the settings
        finished = read_finished(self.out)
        done = Counter(trial_kind(content) for content in finished.values())
        counts = RunCounts()
        for algorithm in sweep.algorithms:
            for data in sweep.datasets:
                label = sweep.combination(algorithm, data).label
                counts.add(label, label, data.title, sweep.count(data), done[data.title, label])
        workers = self.scheduling.workers
        self.output.show("sweep", show_plan(counts, self.out, finished, run_options, workers, sweep.sample()))


COMMAND = Sweep
