"""``pogm data features``: features of images by a fixed network, as a dataset of vectors."""

from dataclasses import dataclass
from pathlib import Path
from shlex import join
from typing import TYPE_CHECKING, ClassVar

from pogm._system.errors import UsageError
from pogm._system.messages import note
from pogm._system.terminal import print_line
from pogm.cli.json_output import Output
from pogm.cli.options import FixedNetwork, Hyperparameters
from pogm.cli.parser import Command, argument, group, option

if TYPE_CHECKING:
    from pogm.benchmark.runs.runner import RunOptions
    from pogm.deployment.feature_files import FeatureFile


@dataclass(frozen=True, kw_only=True)
class Features(Command):
    """Compute the features of all images by a fixed pretrained network, and write them as a dataset of vectors."""

    examples: ClassVar[str] = """
pogm data features ./hospitals --out hospitals.npz             then: pogm train hospitals.npz --out model
pogm data features ./new_site --like hospitals.npz --out new_site.npz    then: pogm evaluate model new_site.npz
pogm data features PACS --weights resnet50_imagenet_v1.safetensors --out PACS.npz
pogm data features ./hospitals --set image_size=128 --out hospitals.npz"""
    notes: ClassVar[str] = (
        "A small network trains on the features in seconds on a CPU. The same command again continues after a stop.\n"
        "With --like, images without labels are accepted, too; predict them with: pogm predict model new_site.npz"
    )

    dataset: str = argument(
        "Folder of images <site>/<class>/<image>, a metadata file, or the name of a dataset.", complete="datasets"
    )
    network: str | None = option(
        "Network of the features (default: that of --weights, or of the dataset).", None, complete="networks"
    )
    like: Path | None = option(
        "File of features of the training sites. The images are those of a new site, and their features are computed "
        "in the same way, with the same network and weights (default: none).",
        None,
        metavar="FILE",
    )
    settings: Hyperparameters = group(Hyperparameters)
    out: Path = option("File to write, with the suffix .npz.", metavar="FILE")
    execution: FixedNetwork = group(FixedNetwork)
    output: Output = group(Output)

    def run(self) -> int:
        """Write the file and name the next command."""
        from functools import partial

        from pogm._system.cpu import count_cores
        from pogm.benchmark.progress.run_progress import show_progress
        from pogm.benchmark.runs.context import use_threads
        from pogm.cli.execution import check_outside, make_run_options

        if self.out.suffix.lower() != ".npz":
            raise UsageError(f"Expected a file with the suffix .npz in --out; found {self.out}. Add the suffix.")
        if self.out.is_dir():
            raise UsageError(f"Expected a file in --out; found the folder {self.out}. Choose another name.")
        if self.like and self.like.resolve() == self.out.resolve():
            raise UsageError(
                f"Expected another file in --out than in --like, whose features would be lost; found {self.out} in "
                "both. Choose another name."
            )
        if not self.out.parent.is_dir():  # a new folder in the images would count as a domain or a class
            check_outside(self.out.parent, [self.dataset], self.execution.data.folder)
        run_options = make_run_options(self.execution.make_execution(), [] if self.like else [self.dataset])
        run_options.enter()
        with use_threads(count_cores()):
            file = self._plan_all(run_options) if self.like is None else self._plan_similar(self.like, run_options)
            written = file.write(self.out, partial(show_progress, what="batches of images"))
        self.output.show(
            "data features",
            {"out": self.out, **written._asdict()},
            lambda: print_line(f"{written.images} images, {written.features} features: {self.out}"),
        )
        if not written.has_labels:
            note("The images have no labels: no folder has the name of a class of the training sites.")
        use = ["evaluate" if written.has_labels else "predict", "model", str(self.out)]
        note(f"Next: {join(['pogm', *(use if self.like else ['train', str(self.out), '--out', 'model'])])}")
        return 0

    def _plan_all(self, run_options: "RunOptions") -> "FeatureFile":
        """Return the file of a dataset."""
        from pogm.benchmark.plan.datasets import find_dataset
        from pogm.benchmark.plan.parsing import build_trial
        from pogm.benchmark.progress.run_progress import show_image_progress
        from pogm.cli.execution import network_settings, prepare
        from pogm.data.images.index import reuse_scans
        from pogm.deployment.feature_files import FeatureFile

        with reuse_scans():
            name = self.settings.add_to(self.dataset)
            dataset = find_dataset(name, run_options.data, show_image_progress)
            settings = network_settings(self.settings, self.execution.weights, self.network)
            trial = build_trial(dataset, "ERM", (), settings=settings)
            prepare([trial], run_options)
            return FeatureFile.of_dataset(trial, run_options.data, run_options.engine)

    def _plan_similar(self, reference: Path, run_options: "RunOptions") -> "FeatureFile":
        """Return the file of a new site, with features that are computed as those of --like."""
        from pogm.deployment.feature_files import Extraction, FeatureFile
        from pogm.models.weights import HASH_PREFIX, hash_weights

        if self.network or self.settings != Hyperparameters():
            raise UsageError(
                "Expected --like alone, which sets the network and the image size; found --network, --set or another "
                "option of the data. Leave it out."
            )
        weights = Extraction.read(reference).weights
        if self.execution.weights and (given := hash_weights(self.execution.weights)) != weights:
            advice = "Give the same file" if weights.startswith(HASH_PREFIX) else "Leave out --weights"
            raise UsageError(
                f"Expected the weights with which {reference} was computed, {weights}; found {given} in "
                f"{self.execution.weights}. {advice}."
            )
        return FeatureFile.of_new_sites(reference, self.dataset, run_options.engine)
