"""``pogm predict``: classes of images by a trained model."""

import csv
import io
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pogm._system.messages import log, note
from pogm._system.terminal import print_line, printable
from pogm.cli.json_output import Output
from pogm.cli.parser import Command, argument, group, option

if TYPE_CHECKING:
    from pogm.deployment.model import TrainedModel
    from pogm.deployment.predict import Predictions

STDOUT = Path("-")


@dataclass(frozen=True, kw_only=True)
class Prediction:
    """Options of commands that predict images."""

    on_bad_image: Literal["refuse", "skip"] = option(
        "Treatment of an image that cannot be read: refuse to predict, or skip it (default: refuse).", "refuse"
    )
    device: str = option("cpu, cuda, cuda:1, ... (default: cuda if a GPU is found, else cpu).", "auto")
    batch_size: int | None = option(
        "Number of images in one pass (default: 32 on a CPU, 256 on a GPU).", None, least=1, most=2**20
    )


@dataclass(frozen=True, kw_only=True)
class Predict(Command):
    """Predict the classes of images, or of the rows of a table, with the probability of every class."""

    examples: ClassVar[str] = """
pogm predict runs/first images --csv predictions.csv        a folder, searched recursively
pogm predict runs/first one.png two.jpg                     print CSV
pogm predict runs/first images --on-bad-image skip --csv predictions.csv
pogm predict runs/heart patients.csv --csv predictions.csv  a table with the columns of the training data"""
    notes: ClassVar[str] = (
        "Images may have any size; they are resized as in training. The CSV file has the columns path, prediction and\n"
        "probability_CLASS for every class; with --on-bad-image skip also reason."
    )

    model: Path = argument("Folder of a run, or of a model.", metavar="MODEL")
    paths: tuple[Path, ...] = argument("Images, folders of images, or a table or file of arrays.", metavar="PATH")
    csv: Path | None = option("File to write; - for standard output (default: -).", None, metavar="FILE")
    prediction: Prediction = group(Prediction)
    output: Output = group(Output)

    def run(self) -> int:
        """Write the predictions as CSV."""
        from pogm.benchmark.progress.run_progress import show_image_progress
        from pogm.deployment.predict import find_images, predict
        from pogm.deployment.samples import is_sample_model

        if is_sample_model(model := load_model(self.model, self.prediction)):
            return self._predict_samples(model)
        groups = find_images(self.paths)
        say_if_adapting(model, "folder")
        predictions = predict(
            model,
            groups,
            batch_size=self.prediction.batch_size,
            on_bad_image=self.prediction.on_bad_image,
            progress=show_image_progress,
        )
        self._write(predictions.csv(reasons=self.prediction.on_bad_image == "skip"))
        note(f"{len(predictions.paths)} images: {predictions.counts()}")
        self.output.show("predict", {"model": self.model, "predictions": _listed(predictions)})
        return 0

    def _write(self, content: bytes) -> None:
        """Write the CSV; with --json, standard output is for the document."""
        path = self.csv or STDOUT
        if path != STDOUT or not self.output.replaces_text:
            write_csv(content, path)

    def _predict_samples(self, model: "TrainedModel") -> int:
        """Write the predictions of a model of tables or arrays."""
        from pogm._system.errors import UsageError
        from pogm.deployment.predict import Predictions
        from pogm.deployment.samples import predict_file

        if len(self.paths) != 1:
            raise UsageError(
                f"Expected one table or file of arrays, for a model of {model.dataset.title}; found {len(self.paths)} "
                "paths. Give them one by one."
            )
        say_if_adapting(model, "domain of the file")
        found = predict_file(model, str(self.paths[0]))
        self._write(found.csv())
        listed: list[dict[str, Any]]
        if isinstance(found, Predictions):
            note(f"{len(found.paths)} rows: {found.counts()}")
            listed = _listed(found)
        else:
            note(f"{len(found.values)} rows")
            listed = [{"row": row, "prediction": value} for row, value in zip(found.rows, found.values, strict=True)]
        self.output.show("predict", {"model": self.model, "predictions": listed})
        return 0


def _listed(predictions: "Predictions") -> list[dict[str, Any]]:
    """Return the predictions for --json."""
    found = []
    for number, name in enumerate(predictions.names):
        values = predictions.probabilities[number].tolist() if name else []
        probabilities = dict(zip(predictions.classes, values, strict=False))
        reason = predictions.reasons[number] or None
        key = {predictions.key: predictions.paths[number]}
        found.append({**key, "prediction": name or None, "probabilities": probabilities, "reason": reason})
    return found


def load_model(folder: Path, options: Prediction) -> "TrainedModel":
    """Load a model on the device of the options."""
    from pogm._system.runtime import configure_runtime
    from pogm.deployment.model import load
    from pogm.engine.session import Engine

    device = Engine(device=options.device).torch_device()
    model = load(folder)
    configure_runtime(device, "fp32", deterministic=False)
    log.info("Model %s on %s", folder, device)
    return model.to(device)


def say_if_adapting(model: "TrainedModel", domain: str) -> None:
    """Print a sentence if the model adapts to its batch."""
    if model.adapts:
        print_line(
            f"pogm: {model.description['algorithm']} adapts to its batch. Each {domain} is predicted as one domain, in "
            f"batches of {model.batch_size} samples; a prediction depends on the other samples of its batch.",
            file=sys.stderr,
        )


def write_csv(content: bytes, path: Path) -> None:
    """Write a file atomically, or to standard output if the path is ``-``.

    A terminal gets names that are escaped; a file or another program gets their bytes.
    """
    from pogm._system.files import write_atomic

    if path != STDOUT:
        write_atomic(path, content)
        note(f"Predictions: {path}")
        return
    if sys.stdout.isatty():
        rows = csv.reader(io.StringIO(content.decode("utf-8", "surrogateescape"), newline=""))
        csv.writer(sys.stdout, lineterminator="\n").writerows(map(printable, row) for row in rows)
        return
    sys.stdout.flush()
    sys.stdout.buffer.write(content)
    sys.stdout.flush()


COMMAND = Predict
