"""``pogm ensemble``: averaged predictions of finished runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pogm.cli.combining import Combining
from pogm.cli.json_output import Output
from pogm.cli.parser import Command, argument, group, option


@dataclass(frozen=True, kw_only=True)
class Ensemble(Command):
    """Average the predictions of finished runs, and evaluate the ensembles."""

    examples: ClassVar[str] = """
pogm ensemble runs/sweep                           one model for each held-out domain and trial
pogm ensemble runs/sweep --mean probabilities --algorithms ERM --dry-run
pogm ensemble runs/sweep --pool-trials             the runs of all trials in one model, as EoA does
pogm export runs/sweep/ensemble/COMBINATION --to onnx"""
    notes: ClassVar[str] = (
        "An ensemble is one model: pogm.load, pogm predict, pogm evaluate and pogm export read it. A prediction costs\n"
        "as much as those of all its members. The same command again computes only what is missing. Runs on generated\n"
        "data, such as RotatedDigits, need pogm sweep --shared-init: without it, every run draws its own data."
    )

    folder: Path = argument("Folder of a sweep, or other folder that contains runs.", metavar="SWEEP")
    mean: Literal["logits", "probabilities"] = option(
        "What is averaged: logits, as in EoA (Arpit et al., 2022), or probabilities (default: logits).", "logits"
    )
    out: Path | None = option("Folder for the ensembles (default: SWEEP/ensemble).", None, metavar="FOLDER")
    combining: Combining = group(Combining)
    output: Output = group(Output)

    def run(self) -> int:
        """Average the predictions, print the tables, and write the ensembles."""
        out = self.out or self.folder / "ensemble"
        return self.combining.run("ensemble", self.folder, out, (self.mean,), self.output)


COMMAND = Ensemble
