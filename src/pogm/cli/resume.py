"""``pogm resume``: continue a run or a sweep."""

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

from pogm._system.errors import UsageError
from pogm.cli.json_output import Output
from pogm.cli.options import MOST_STEPS, Distributed, Execution, Scheduling
from pogm.cli.parser import Command, argument, group, option


@dataclass(frozen=True, kw_only=True)
class Resume(Command):
    """Continue a run, or a sweep, that was stopped or killed."""

    trains: ClassVar[bool] = True
    examples: ClassVar[str] = """
pogm resume runs/first
pogm resume runs/first --steps 10001                 extend a run, finished or not
pogm resume runs/sweep --retry-failed"""
    under_torchrun: ClassVar[bool] = True

    folder: Path = argument("Folder of a run, or of a sweep.")
    steps: int | None = option(
        "Extend one run to this number of minibatches (default: its number).", None, least=1, most=MOST_STEPS
    )
    dry_run: bool = option("Show what is left and its time, and stop.", False)
    scheduling: Scheduling = group(Scheduling)
    execution: Execution = group(Execution)
    distributed: Distributed = group(Distributed)
    output: Output = group(Output)

    def run(self) -> int:
        """Continue with the data, weights and numerical options that the run began with, unless others are given."""
        from pogm.benchmark.runs.directory import extend_run, extend_trial, load_trial
        from pogm.cli.execution import add_launch, make_run_options
        from pogm.cli.single_run import run_document, show_run, train_run

        execution = self.options_of_the_run()
        if (self.folder / "sweep.json").exists():
            return self._resume_sweep(execution)
        run_options = add_launch(make_run_options(execution), self.distributed)
        if self.dry_run:
            trial = load_trial(self.folder) if self.steps is None else extend_trial(self.folder, self.steps)
            show_run(trial, self.folder, run_options)
            if run_options.is_first_process:
                self.output.show("resume", {"dry_run": True, **run_document(trial, self.folder)})
            return 0
        trial = load_trial(self.folder) if self.steps is None else extend_run(self.folder, self.steps)
        train_run(trial, self.folder, run_options, self.output, "resume")
        return 0

    def _resume_sweep(self, execution: Execution) -> int:
        from pogm.benchmark.runs.sweep_directory import load_sweep
        from pogm.cli.execution import check_single_process, left_to_run, make_run_options, prepare
        from pogm.cli.planning import count_trials, read_finished, show_plan
        from pogm.cli.results import run_sweep

        check_single_process("a sweep")
        if self.steps is not None:
            raise UsageError(f"Expected --steps for one run; found the sweep {self.folder}. Leave it out.")
        if self.distributed.spread:
            raise UsageError(f"Expected --spread for one run; found the sweep {self.folder}. Leave it out.")
        sweep, run_options = load_sweep(self.folder), self.scheduling.set_kept_models(make_run_options(execution))
        if self.dry_run:
            finished = read_finished(self.folder)
            counts = count_trials(sweep.plan(), finished)
            advice = "add --estimate to the command of the sweep"
            workers = self.scheduling.workers
            plan = show_plan(counts, self.folder, finished, run_options, workers, sweep.sample(), advice)
            self.output.show("resume", plan)
            return 0
        prepare(left_to_run(sweep.plan(), self.folder), run_options)
        return run_sweep(sweep, self.folder, run_options, self.scheduling, "resume", self.output)

    def options_of_the_run(self) -> Execution:
        """Return the options of the command line, completed by those that the run recorded."""
        from pogm.benchmark.results.record_digest import TRIAL
        from pogm.benchmark.runs.provenance import read_provenance, read_provenance_path

        given = self.execution
        device: dict[str, Any] = {}
        if given.device.trajectories == "auto" and read_provenance("trajectories", self.folder) == "bf16":
            device["trajectories"] = "bf16"  # bf16 rounds, so the run must continue with it
        if given.device.micro_batch is None:  # the run may not fit into memory without it
            device["micro_batch"] = read_provenance("micro_batch", self.folder)
        if read_provenance("deterministic", self.folder):
            device["deterministic"] = True
            if (self.folder / TRIAL).exists():  # one run; the runs of a sweep have their own records
                if given.device.trajectories == "auto":
                    device["trajectories"] = read_provenance("trajectories", self.folder) or "auto"
                if given.device.compile == "auto":
                    device["compile"] = "on" if read_provenance("compiled", self.folder) else "off"
                device["no_capture"] = given.device.no_capture or not read_provenance("captured", self.folder)
        return replace(
            given,
            data=given.data.for_run(read_provenance_path("data", self.folder)),
            weights=given.weights or read_provenance_path("weights", self.folder),
            device=replace(given.device, **device),
        )


COMMAND = Resume
