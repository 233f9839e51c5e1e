"""Features for `pogm verdict`: outputs of a fixed network for images, and encoded columns of tables."""

from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path

import numpy as np
import torch

from pogm._system.errors import UsageError
from pogm._system.terminal import printable
from pogm.benchmark.plan.trial import Trial
from pogm.data.datasets.array_dataset import ArrayDataset
from pogm.data.datasets.base import Training, seed_hash
from pogm.data.transforms.arrays import Columns
from pogm.data.transforms.base import Transform
from pogm.deployment.verdict import MOST_IMAGES, Array, Labels
from pogm.engine.session import Engine
from pogm.models import build_features

BATCH = 32
Progress = Callable[[Iterable[torch.Tensor], int], Iterator[torch.Tensor]]


def extract_features(
    trial: Trial, data: Path | None, engine: Engine, progress: Progress, seed: int = 0
) -> tuple[list[Array], list[Labels], list[Labels]]:
    """Return features, labels and groups of each site: of at most 600 images of a site, or all samples of a table.

    The list of groups is empty if the dataset has none.

    Args:
        trial: Trial that names the dataset, the network and its weights.
        data: Data folder.
        engine: Device.
        progress: Shows how many batches are done.
        seed: Seed of the choice of images, and of random weights.

    Raises:
        UsageError: The dataset is a regression, or consists neither of images nor of columns; or a site has one group.
    """
    if isinstance(trial.dataset, ArrayDataset):
        return _encode_columns(trial, data)
    extract = build_extractor(trial.training, trial.dataset.transform(trial.training), engine, seed)
    draw = np.random.default_rng(seed)
    chosen, labels, sizes, groups = [], [], [], list[Labels]()
    for domain in trial.task(data).load():
        index = torch.from_numpy(np.sort(draw.permutation(len(domain.labels))[:MOST_IMAGES]))
        chosen += list(torch.split(domain.inputs[index], BATCH))
        labels.append(domain.labels[index].numpy())
        sizes.append(len(index))
        groups += [] if domain.groups is None else [domain.groups[index].numpy()]
    _check_groups(trial, groups)
    found = [extract(images).double() for images in progress(chosen, len(chosen))]
    return [part.numpy() for part in torch.split(torch.cat(found), sizes)], labels, groups


def build_extractor(
    training: Training, transform: Transform, engine: Engine, seed: int = 0
) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function from stored images [N, C, H, W] to features [N, F]: a fixed network, without augmentation.

    Args:
        training: Names the network and its weights.
        transform: Transform from stored images to inputs of the network.
        engine: Device.
        seed: Seed of random weights.
    """
    device = engine.torch_device()
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_hash("weights", seed))  # random weights are the same for the same seed
        module, _ = build_features(training.network, transform.shape, weights=training.weights)
    module = module.eval().to(device)

    @torch.no_grad()
    def extract(images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = module(transform.to_inputs(images.to(device), torch.float32))
        return features.flatten(1).float().cpu()

    return extract


def _check_groups(trial: Trial, groups: Sequence[Labels]) -> None:
    single = [name for name, group in zip(trial.dataset.domains, groups, strict=False) if len(np.unique(group)) < 2]
    if single:
        raise UsageError(
            f"Expected two or more groups in every site, because cross-validation does not divide a group; found one "
            f"in {', '.join(map(printable, single))}. Leave out the site or the column of the groups."
        )


def _encode_columns(trial: Trial, data: Path | None) -> tuple[list[Array], list[Labels], list[Labels]]:
    """Return the columns of a table, imputed and standardised over all sites, the labels and groups of each site."""
    transform = trial.dataset.transform(trial.training)
    if trial.dataset.task != "classification" or not isinstance(transform, Columns):
        found = "a regression" if trial.dataset.task != "classification" else "series, audio or text"
        raise UsageError(
            f"Expected a classification of images or of the rows of a table; found {found} in {trial.dataset.title}. "
            "Hold out each site of it with: pogm train"
        )
    domains = trial.task(data).load()
    statistics = transform.fit([domain.inputs for domain in domains])
    features = [transform.prepare(domain.inputs, statistics, torch.float64).numpy() for domain in domains]
    groups = [domain.groups.numpy() for domain in domains if domain.groups is not None]
    _check_groups(trial, groups)
    return features, [domain.labels.numpy() for domain in domains], groups
