"""``pogm evaluate``: metrics of a trained model at a new site."""

import sys
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import ClassVar

from pogm.cli.parser import Command, argument, group, option
from pogm.cli.predict import Prediction


@dataclass(frozen=True, kw_only=True)
class Evaluate(Command):
    """Measure a trained model on labelled images of new sites, with confidence intervals."""

    examples: ClassVar[str] = """
pogm evaluate runs/first new_site                           one site: new_site/CLASS/IMAGE
pogm evaluate runs/first hospitals                          several sites: hospitals/SITE/CLASS/IMAGE
pogm evaluate runs/first new_site --json metrics.json --csv predictions.csv"""
    notes: ClassVar[str] = "Class folders are matched by name. Images may have any size."

    model: Path = argument("Folder of a run, or of a model.", metavar="MODEL")
    site: Path = argument("Folder of labelled images.", metavar="NEW_SITE")
    ignore_unknown_classes: bool = option("Leave out folders of classes that the model does not know.", False)
    json: Path | None = option("File for all numbers (default: none).", None, metavar="FILE")
    csv: Path | None = option("File for the prediction of every image (default: none).", None, metavar="FILE")
    prediction: Prediction = group(Prediction)

    def run(self) -> int:
        """Print the metrics, and write the files."""
        from pogm._system.files import readable_json, write_atomic
        from pogm.benchmark.runs.progress import show_progress
        from pogm.cli.predict import load_model, say_if_adapting
        from pogm.deployment.evaluate import evaluate

        model = load_model(self.model, self.prediction)
        say_if_adapting(model, "site")
        found = evaluate(
            model,
            self.site,
            ignore_unknown_classes=self.ignore_unknown_classes,
            batch_size=self.prediction.batch_size,
            on_bad_image=self.prediction.on_bad_image,
            progress=partial(show_progress, what="images"),
        )
        for warning in found.warnings():
            print(f"pogm: {warning}", file=sys.stderr)
        print(found.text(), end="")
        for path, content in ((self.json, readable_json(found.to_json())), (self.csv, found.csv())):
            if path is not None:
                write_atomic(path, content)
        return 0


COMMAND = Evaluate
