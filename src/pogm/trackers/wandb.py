"""Weights & Biases: offline in the run's folder, for ``wandb sync``, unless WANDB_MODE says otherwise."""

import os
from pathlib import Path

from pogm.trackers.base import Config, Record, Tracker, marked, scalars, title


class WandB(Tracker):
    """A run whose id is the trial's, so that a resumed run continues it."""

    def start(self, run_id: str, folder: Path, config: Config) -> None:
        """Begin or continue the run; its numbers are over our steps, not over W&B's count of calls."""
        mode = os.environ.get("WANDB_MODE", "offline")
        if mode == "offline":
            os.environ.setdefault("WANDB_ERROR_REPORTING", "false")  # offline is offline
        import wandb

        self.config = config
        self.steps = folder / "wandb" / "steps"  # that W&B has, which cannot be asked offline
        self.steps.parent.mkdir(exist_ok=True)
        self.written = set(self.steps.read_text().split()) if self.steps.exists() else set()
        self.run = wandb.init(
            id=run_id,
            resume="allow",
            reinit="create_new",  # trials of a batch are runs side by side
            mode=mode,
            dir=folder,
            project=os.environ.get("WANDB_PROJECT", "pogm"),
            name=title(config),
            config=dict(config),
            settings=wandb.Settings(console="off", silent=True),
        )
        self.run.define_metric("step")
        self.run.define_metric("*", step_metric="step")

    def record(self, record: Record) -> None:
        """Log it, unless an earlier process has."""
        step = marked(str(record["step"]), record)
        if step not in self.written:
            with open(self.steps, "a") as file:  # before: a process that is killed now leaves a gap, not a step twice
                file.write(f"{step}\n")
            self.run.log({"step": record["step"], **scalars(record, self.config)})

    def end(self, status: str) -> None:
        """Finish the run."""
        self.run.finish(exit_code=0 if status == "done" else 1)
