"""``pogm evaluate``: metrics of a trained model at a new site."""

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, ClassVar, Literal

from pogm._system.terminal import print_line
from pogm.cli.json_output import Output
from pogm.cli.parser import Command, argument, group, option
from pogm.cli.predict import Prediction

if TYPE_CHECKING:
    from pogm.deployment.evaluate import Evaluation
    from pogm.deployment.samples import RegressionEvaluation


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Measure a trained model on labelled images, or a labelled table, of new sites, with confidence intervals."""

    examples: ClassVar[str] = """
pogm evaluate runs/first new_site                           one site: new_site/CLASS/IMAGE
pogm evaluate runs/first hospitals                          several sites: hospitals/SITE/CLASS/IMAGE
pogm evaluate runs/first new/metadata.csv                   a metadata file with the columns path, label and domain
pogm evaluate runs/first all.csv:label=y,domain=hospital --site c
pogm evaluate runs/first new_site --json metrics.json --csv predictions.csv"""
    notes: ClassVar[str] = (
        "Classes are matched by name; if the training renamed classes (classes.csv), the same names are changed here.\n"
        "Columns of a metadata file and another class mapping are named after a colon, as for pogm train. Images may\n"
        "have any size."
    )

    model: Path = argument("Folder of a run, or of a model.", metavar="MODEL")
    images: str = argument("Folder of labelled images, or a metadata file.", metavar="NEW_SITE")
    site: tuple[str, ...] = option(
        "Evaluate only this site of the folder or file; may be repeated (default: all sites).",
        (),
        repeat=True,
        metavar="SITE",
    )
    split: Literal["train", "val", "test"] | None = option(
        "Evaluate only this split of a metadata file (default: all images).", None
    )
    ignore_unknown_classes: bool = option("Leave out images, or rows, of classes that the model does not know.", False)
    csv: Path | None = option("File for the prediction of every image (default: none).", None, metavar="FILE")
    prediction: Prediction = group(Prediction)
    output: Output = group(Output)

    def run(self) -> int:
        """Print the metrics, and write the files."""
        from pogm.benchmark.progress.run_progress import show_image_progress
        from pogm.cli.predict import load_model, say_if_adapting
        from pogm.deployment.evaluate import evaluate
        from pogm.deployment.samples import evaluate_file, is_sample_model

        model = load_model(self.model, self.prediction)
        say_if_adapting(model, "site")
        if is_sample_model(model):
            return self._report(
                evaluate_file(
                    model,
                    self.images,
                    sites=self.site,
                    split=self.split,
                    ignore_unknown_classes=self.ignore_unknown_classes,
                )
            )
        found = evaluate(
            model,
            self.images,
            sites=self.site,
            split=self.split,
            ignore_unknown_classes=self.ignore_unknown_classes,
            batch_size=self.prediction.batch_size,
            on_bad_image=self.prediction.on_bad_image,
            progress=show_image_progress,
        )
        return self._report(found)

    def _report(self, found: "Evaluation | RegressionEvaluation") -> int:
        from pogm._system.files import write_atomic

        for warning in found.warnings():
            print_line(f"pogm: {warning}", file=sys.stderr)
        self.output.show("evaluate", found.to_json(), lambda: print(found.text(), end=""))
        if self.csv is not None:
            write_atomic(self.csv, found.csv())
        return 0


COMMAND = Evaluate
