"""``pogm demo``: a first comparison that needs no data and no GPU."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from pogm._system.terminal import print_line
from pogm.cli.json_output import Output
from pogm.cli.options import MOST_REPETITIONS, workers_option
from pogm.cli.parser import Command, group, option


@dataclass(frozen=True, kw_only=True)
class Demo(Command):
    """Train four methods on two small datasets (about a minute), print tables, write a report."""

    trains: ClassVar[bool] = True
    examples: ClassVar[str] = "pogm demo --out runs/demo --seeds 3"

    out: Path = option("Folder for the runs and the report.", Path("runs/demo"), metavar="FOLDER")
    seeds: int = option(
        "Number of runs with different seeds for each held-out domain.", 3, least=1, most=MOST_REPETITIONS
    )
    workers: int = workers_option()
    dry_run: bool = option("List the runs and stop.", False)
    output: Output = group(Output)

    def run(self) -> int:
        """Train all runs, then print the tables and write the report."""
        from pogm.benchmark.demo import plan
        from pogm.benchmark.executors.local import run_all
        from pogm.benchmark.runs.runner import RunOptions
        from pogm.benchmark.runs.sweep_directory import save_plan
        from pogm.cli.results import finish

        trials = plan(self.seeds)
        if self.dry_run:
            print_line(
                f"{len(trials)} runs of {trials[0].steps} minibatches on {self.workers} processes, into {self.out}:"
            )
            for trial in trials:
                print_line(f"  {trial.id}  {trial.dataset.title}  {trial.label}  held out {trial.test_domains[0]}")
            listed = [{"trial": t.id, "dataset": t.dataset.title, "label": t.label} for t in trials]
            self.output.show("demo", {"dry_run": True, "folder": self.out, "runs": listed})
            return 0
        save_plan(trials, self.out)
        outcomes = run_all(trials, self.out, RunOptions(), self.workers)
        return finish(outcomes, trials, self.out, "demo", self.output)


COMMAND = Demo
