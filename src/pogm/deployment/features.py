"""Features: outputs of a fixed network for images, for `pogm data features` and `pogm verdict`; columns of tables."""

import io
import os
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import torch

from pogm._system.errors import UsageError
from pogm._system.files import TEMPORARY, canonical_json, digest, write_atomic
from pogm._system.terminal import printable
from pogm.benchmark.plan.trial import Trial
from pogm.data.datasets.array_dataset import ArrayDataset
from pogm.data.datasets.base import seed_hash
from pogm.data.images.metadata import SPLITS
from pogm.data.transforms.arrays import Columns
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
    extract = build_extractor(trial, engine, seed)
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


def build_extractor(trial: Trial, engine: Engine, seed: int = 0) -> Callable[[torch.Tensor], torch.Tensor]:
    """Return a function from stored images [N, C, H, W] to features [N, F]: a fixed network, without augmentation.

    Args:
        trial: Trial that names the network, its weights and the size of its input.
        engine: Device.
        seed: Seed of random weights.
    """
    device = engine.torch_device()
    transform = trial.dataset.transform(trial.training)
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(seed_hash("weights", seed))  # random weights are the same for the same seed
        module, _ = build_features(trial.training.network, transform.shape, weights=trial.training.weights)
    module = module.eval().to(device)

    @torch.no_grad()
    def extract(images: torch.Tensor) -> torch.Tensor:
        features: torch.Tensor = module(transform.to_inputs(images.to(device), torch.float32))
        return features.flatten(1).float().cpu()

    return extract


def write_features(trial: Trial, data: Path | None, engine: Engine, progress: Progress, out: Path) -> tuple[int, int]:
    """Write the features of all images of a dataset as an ``.npz`` file, which is a dataset of vectors itself.

    Its arrays are ``x`` [N, F], ``y`` (names of the classes), ``domain``, ``group`` and ``split`` if the images have
    them, and what computed them: ``network``, ``weights``, ``image_size``, ``stored_size`` and ``intensity``. Features
    that are computed are kept in a file beside it until it is complete, so that the same call continues after a stop.

    Args:
        trial: Trial that names the dataset, the network and its weights.
        data: Data folder.
        engine: Device.
        progress: Shows how many batches are done.
        out: The file.

    Returns:
        Number of images and of features.

    Raises:
        UsageError: The dataset does not consist of images.
    """
    dataset, training = trial.dataset, trial.training
    if isinstance(dataset, ArrayDataset) or len(dataset.input_shape) != 3:
        raise UsageError(
            f"Expected a dataset of images, of which a network computes features; found {dataset.title}. Train on it "
            "as it is."
        )
    extract, domains = build_extractor(trial, engine), trial.task(data).load()
    images = [part for domain in domains for part in torch.split(domain.inputs, BATCH)]
    identity = canonical_json({"trial": trial.to_json(), **dataset.describe_data(data)})
    partial = out.with_name(f"{out.name}.{digest(identity.encode())[:8]}.partial")
    x = _compute_rows(extract, images, partial, progress)

    names = np.array(dataset.class_names(data))
    arrays: dict[str, Any] = {
        "x": x,
        "y": names[torch.cat([domain.labels for domain in domains]).numpy()],
        "domain": np.repeat(np.array(dataset.domains), [len(domain.labels) for domain in domains]),
        "network": training.network,
        "weights": training.weights,
        "image_size": dataset.transform(training).shape[-1],
        "stored_size": images[0].shape[-2:],
        "intensity": dataset.describe_data(data).get("intensity", ""),
    }
    groups = [domain.groups for domain in domains if domain.groups is not None]
    splits = [domain.splits for domain in domains if domain.splits is not None]
    arrays |= {"group": torch.cat(groups).numpy()} if groups else {}
    arrays |= {"split": np.array(list(SPLITS))[torch.cat(splits).numpy()]} if splits else {}
    content = io.BytesIO()
    np.savez(content, **arrays)
    write_atomic(out, content.getvalue())
    partial.unlink()
    return len(x), x.shape[1]


def _compute_rows(
    extract: Callable[[torch.Tensor], torch.Tensor], images: Sequence[torch.Tensor], partial: Path, progress: Progress
) -> "np.memmap[Any, np.dtype[np.float32]]":
    """Compute the features [N, F] of batches of images that a memory-mapped file lacks: its rows of zeros."""
    if not partial.exists():
        shape = (sum(map(len, images)), extract(images[0][:1]).shape[1])
        unfinished = partial.with_name(partial.name + TEMPORARY)
        np.lib.format.open_memmap(unfinished, "w+", np.float32, shape).flush()
        os.replace(unfinished, partial)
    rows = np.lib.format.open_memmap(partial, "r+")
    ends = np.cumsum([len(batch) for batch in images])
    places = [slice(end - len(batch), end) for end, batch in zip(ends, images, strict=True)]
    missing = [n for n, place in enumerate(places) if not rows[place].any(1).all()]
    for n, batch in zip(missing, progress([images[n] for n in missing], len(missing)), strict=True):
        rows[places[n]] = extract(batch).numpy()
    return rows


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
