"""Training on images with more than 8 bits per channel."""

import json
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from pogm import ERM
from pogm._system.errors import UsageError
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.data.datasets import dataset_class
from pogm.data.datasets.folder import Folder
from pogm.data.images.intensity import Intensity


def write_images(root: Path, bits: int) -> Path:
    """Write images of two classes that differ by a weak pattern: 6 of 255 grey levels."""
    noise = np.random.default_rng(0)
    pattern = np.where(np.arange(16) % 4 < 2, 3, -3)
    for site in ("a", "b", "c"):
        for name, signal in (("flat", 0), ("striped", pattern)):
            (root / site / name).mkdir(parents=True)
            for number in range(20):
                pixels = (104 + signal + noise.integers(-2, 3, (16, 16))).astype(np.uint16)
                image = pixels.astype(np.uint8) if bits == 8 else np.rint(pixels * (4095 / 255)).astype(np.uint16)
                image[0, 0] = 2**bits - 1  # all images have the whole range
                Image.fromarray(image).save(root / site / name / f"{number:02}.png")
    return root


@pytest.fixture(scope="module")
def folders(tmp_path_factory):
    root = tmp_path_factory.mktemp("wide")
    return {bits: write_images(root / f"bits{bits}", bits) for bits in (8, 12)}


def train(folder: Path, out: Path, **settings: str) -> tuple[float, dict]:
    """Train a small network; return its last accuracy on the held-out site, and the provenance."""
    dataset = replace(Folder.from_path(folder), **settings)
    changes = {"network": "small_cnn", "weights": "random", "image_size": 16, "batch_size": 8, "lr": 3e-3}
    training = replace(dataset.training, data_augmentation=False, freeze_bn=False, **changes)
    options = {"test_domains": (2,), "steps": 61, "evaluate_every": 60, "training": training}
    run(Trial(dataset=dataset, algorithm=ERM(), **options), out, RunOptions(data=folder.parent))
    record = json.loads((out / "records.jsonl").read_text().splitlines()[-1])
    return record["accuracy"]["in"][2], json.loads((out / "trial.json").read_text())


def test_12_bit_images_train_as_well_as_8_bit_images(folders, tmp_path):
    eight, _ = train(folders[8], tmp_path / "eight")
    twelve, facts = train(folders[12], tmp_path / "twelve")
    upper, _ = train(folders[12], tmp_path / "upper", intensity="none")
    assert eight == twelve > 0.9
    assert upper < 0.7, "the upper 8 bits contain 1 grey level of the pattern or none"
    assert "auto:0:4095" in json.dumps(facts), "the scaling is recorded"


def test_folder_chooses_auto_only_for_wide_images(folders):
    assert Folder.from_path(folders[8]).intensity == "none"
    assert Folder.from_path(folders[12]).intensity == "auto"


def test_stored_pixels_are_equal_for_8_and_12_bits(folders):
    eight, twelve = (Folder.from_path(folder).load(folder.parent, 0) for folder in folders.values())
    for one, other in zip(eight, twelve, strict=True):
        assert one.inputs.equal(other.inputs)


def test_description_of_the_data_names_the_scaling_of_wide_images_only(folders):
    described = {bits: Folder.from_path(folder).describe_data(folder.parent) for bits, folder in folders.items()}
    assert "intensity" not in described[8]
    assert Intensity.parse(described[12]["intensity"]) == Intensity("auto", 0, 4095)


def test_ids_of_earlier_trials_do_not_change(folders):
    """A saved trial without the field has the upper 8 bits, as when it ran."""
    dataset = Folder.from_path(folders[8])
    assert set(dataset.to_json()) == {"name", "on_bad_image", "allow_unseen", "title", "domains", "classes", "content"}
    assert set(dataset_class("PACS")().to_json()) == {"name", "on_bad_image", "allow_unseen"}
    assert Folder.from_path(folders[12]).to_json()["intensity"] == "auto"


def test_unknown_intensity_is_refused_when_the_dataset_is_made():
    with pytest.raises(UsageError, match="window:LOW:HIGH"):
        Folder(intensity="12 bits")
