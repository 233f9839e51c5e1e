"""``pogm soup``: averaged weights of finished runs."""

from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar, Literal

from pogm._system.errors import UsageError
from pogm.cli.combining import Combining
from pogm.cli.json_output import Output
from pogm.cli.parser import Command, argument, group, option


@dataclass(frozen=True, kw_only=True)
class Soup(Command):
    """Average the weights of finished runs that share their initial weights, and evaluate the averaged models."""

    examples: ClassVar[str] = """
pogm sweep --algorithms ERM --datasets RotatedDigits --configurations 5 --trials 2 --shared-init --out runs/sweep
pogm soup runs/sweep                               uniform and greedy, for each held-out domain and trial
pogm soup runs/sweep --rule greedy --algorithms ERM --dry-run
pogm soup runs/sweep --pool-trials                 the runs of all trials in one soup (DiWA† in the paper of DiWA)
pogm evaluate runs/sweep/soup/COMBINATION new_site"""
    notes: ClassVar[str] = (
        "uniform: the mean of all runs. greedy: begin with the run of the best validation accuracy, and add the\n"
        "others, best first, unless the validation accuracy of the mean falls. Validation images are the out splits\n"
        "of the training domains. The same command again computes only soups that are missing or have new runs.\n"
        "pogm ensemble averages predictions, and does not need shared initial weights. Generated data, such as\n"
        "RotatedDigits, need --shared-init for both commands."
    )

    folder: Path = argument("Folder of a sweep, or other folder that contains runs.", metavar="SWEEP")
    rule: Literal["both", "uniform", "greedy"] | None = option(
        "Which members are averaged: all (uniform), those that do not lower the validation accuracy (greedy), or both "
        "soups (default: both; uniform with --pool-trials).",
        None,
    )
    out: Path | None = option("Folder for the averaged models (default: SWEEP/soup).", None, metavar="FOLDER")
    combining: Combining = group(Combining)
    output: Output = group(Output)

    def run(self) -> int:
        """Average the weights, print the tables, and write the models."""
        rule = self.rule or ("uniform" if self.combining.pool_trials else "both")
        if self.combining.pool_trials and rule != "uniform":
            raise UsageError(
                f"Expected --rule uniform with --pool-trials, because few images are in the validation splits "
                f"of all trials; found {rule}. Leave one of the two out."
            )
        rules = ("uniform", "greedy") if rule == "both" else (rule,)
        return self.combining.run("soup", self.folder, self.out or self.folder / "soup", rules, self.output)


COMMAND = Soup
