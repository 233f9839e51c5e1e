"""Weights & Biases: logs offline to the run's folder, for ``wandb sync``, unless WANDB_MODE is set."""

import os
from pathlib import Path

from pogm._system.files import open_own_file
from pogm.trackers.base import Config, Record, Tracker, add_mark, run_title, scalars


class WandB(Tracker):
    """W&B run with the id of the trial, so that a resumed run continues it."""

    def start(self, run_id: str, folder: Path, config: Config) -> None:
        """Start or continue the run. The x axis is our step, not W&B's count of calls."""
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # no network access in offline mode
        import wandb

        self.config = config
        self.steps = folder / "wandb" / "steps"  # steps that were logged; W&B cannot be queried offline
        self.steps.parent.mkdir(exist_ok=True)
        self.written = set(self.steps.read_text().split()) if self.steps.exists() else set()
        self.run = wandb.init(
            id=run_id,
            resume="allow",
            reinit="create_new",  # the trials of a batch are several runs in one process
            mode=mode,
            dir=folder,
            project=os.environ.get("WANDB_PROJECT", "pogm"),
            name=run_title(config),
            config=dict(config),
            settings=wandb.Settings(console="off", silent=True),
        )
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def record(self, record: Record) -> None:
        """Log an evaluation, unless an earlier process has logged it."""
        step = add_mark(str(record["step"]), record)
        if step not in self.written:
            # Before logging: a kill at this point leaves a gap and not a duplicate.
            with open(self.steps, "a", opener=open_own_file) as file:
                file.write(f"{step}\n")
            self.run.log({"step": record["step"], **scalars(record, self.config)})

    def end(self, status: str) -> None:
        """Finish the run."""
        self.run.finish(exit_code=0 if status == "done" else 1)
