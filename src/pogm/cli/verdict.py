"""``pogm verdict``: will a model work at the next site?"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from shlex import join
from typing import ClassVar

from pogm._system.messages import note
from pogm._system.terminal import print_line
from pogm.cli.json_output import Output
from pogm.cli.options import MOST_SEED, FixedNetwork, Hyperparameters
from pogm.cli.parser import Command, argument, group, option


@dataclass(frozen=True, kw_only=True)
class Verdict(Command):
    """Say whether a model will work at the next site, from images or a table of several sites."""

    examples: ClassVar[str] = """
pogm verdict ./hospitals
pogm verdict ./hospitals --weights mobilenet_v2_imagenet.safetensors --json verdict.json
pogm verdict patients.csv:label=outcome,domain=hospital"""
    notes: ClassVar[str] = (
        "Features of images come from a pretrained network that is not trained further; features of a table are its\n"
        "columns. Classifiers on them take minutes on a CPU. The forecast is for such a classifier. pogm train gives\n"
        "the forecast for a trained network. The last line is the command that trains one on the same data."
    )

    folder: str = argument(
        "Folder of images <site>/<class>/<image>, a table, or the name of a dataset.", complete="datasets"
    )
    network: str | None = option(
        "Network of the features (default: that of --weights, or of the dataset).", None, complete="networks"
    )
    settings: Hyperparameters = group(Hyperparameters)
    seed: int = option(
        "Seed of the choice of images, of random weights and of cross-validation.", 0, least=0, most=MOST_SEED
    )
    execution: FixedNetwork = group(FixedNetwork)
    output: Output = group(Output)

    def run(self) -> int:
        """Print the table of the sites and the verdict in words."""
        from pogm._system.cpu import count_cores
        from pogm._system.errors import UsageError
        from pogm.benchmark.plan.datasets import find_dataset
        from pogm.benchmark.plan.parsing import build_trial
        from pogm.benchmark.progress.run_progress import show_image_progress, show_progress
        from pogm.benchmark.runs.context import use_threads
        from pogm.cli.execution import make_run_options, network_settings, prepare
        from pogm.data.datasets.array_dataset import ArrayDataset
        from pogm.data.datasets.base import HOLDOUT
        from pogm.data.images.index import reuse_scans
        from pogm.deployment.features import extract_features
        from pogm.deployment.verdict import analyse

        run_options = make_run_options(self.execution.make_execution(), [self.folder])
        run_options.enter()
        with reuse_scans(), use_threads(count_cores()):
            name = self.settings.add_to(self.folder)
            dataset = find_dataset(name, run_options.data, show_image_progress)
            if len(dataset.domains) < 2:
                raise UsageError(
                    f"Expected at least two sites in {self.folder}; found {len(dataset.domains)}. One site says "
                    "nothing about the next."
                )
            settings = network_settings(self.settings, self.execution.weights, self.network)
            trial = build_trial(dataset, "ERM", (), settings=settings)
            prepare([trial], run_options)
            progress = partial(show_progress, what="batches of images")
            found = extract_features(trial, run_options.data, run_options.engine, progress, self.seed)
        samples = "samples" if isinstance(dataset, ArrayDataset) else "images"
        features, labels, groups = found
        note(f"Fitting classifiers to the features of {sum(map(len, labels))} {samples}")
        verdict = analyse(features, labels, dataset.domains, self.seed, samples, groups)

        def show_text() -> None:
            print(verdict.text())
            for sentence in verdict.sentences():
                print_line(sentence)
            small = [site.site for site in verdict.sites if site.images < 1 / HOLDOUT]
            classes = [set(found.tolist()) for found in labels]
            alone = [label for label in sorted(set().union(*classes)) if sum(label in found for found in classes) == 1]
            first = ""
            if alone and isinstance(dataset, ArrayDataset):  # training would refuse them
                names = ", ".join(dataset.label_names[label] for label in alone)
                first = f"rename or remove classes that one site alone has ({names}), then: "
            held_out = small if len(small) + 2 <= len(verdict.sites) else []
            print_line(f"Next: {first}{self._train_command(held_out, allow_unseen=bool(alone) and not first)}")

        self.output.show("verdict", verdict.to_json(), show_text)
        return 0

    def _train_command(self, small: Sequence[str], *, allow_unseen: bool) -> str:
        """Return the command that trains a model on the same data, with the same network.

        Args:
            small: Sites that are too small for a training and a validation part, which are held out.
            allow_unseen: Count images as errors whose class no other site has; otherwise the command refuses them.
        """
        given = {
            "--network": self.network,
            "--weights": self.execution.weights,
            "--group": self.settings.group_column,
            "--on-bad-image": self.settings.on_bad_image,
        }
        words = [word for flag, value in given.items() if value is not None for word in (flag, str(value))]
        settings = self.settings.settings
        if allow_unseen and "allow_unseen=true" not in settings:
            settings = (*settings, "allow_unseen=true")
        words += [word for text in settings for word in ("--set", text)]
        words += [word for site in small for word in ("--hold-out", site)]
        return join(["pogm", "train", self.folder, *self.execution.data.words, *words, "--out", "model"])


COMMAND = Verdict
