"""Runs with a selected model, which the tests of deployment share. Tests copy a folder before they change it."""

from pathlib import Path

import numpy as np
import pytest
from PIL import Image
from support import trial

from pogm import ERM
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.data.datasets.folder import Folder


@pytest.fixture(scope="session")
def digits(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Run on RotatedDigits."""
    folder = tmp_path_factory.mktemp("digits") / "run"
    run(trial(ERM()), folder)
    return folder


@pytest.fixture(scope="session")
def photographs(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    """Folder of images of different sizes, and a run on it."""
    root, noise = tmp_path_factory.mktemp("photographs") / "sites", np.random.default_rng(0)
    for site in ("a", "b", "c"):
        for name, colour in (("blue", (20, 30, 200)), ("red", (200, 30, 20))):
            (root / site / name).mkdir(parents=True)
            for number in range(6):
                shape = (40 + 3 * number, 50, 3)
                pixels = np.clip(np.array(colour) + noise.integers(-20, 20, shape), 0, 255).astype(np.uint8)
                Image.fromarray(pixels).save(root / site / name / f"{number}.png")
    dataset = Folder.from_path(root)
    training = type(dataset.training)(network="small_cnn", weights="random", image_size=32, batch_size=4, lr=1e-3)
    options = {"test_domains": (2,), "steps": 31, "evaluate_every": 10, "training": training}
    run(Trial(dataset=dataset, algorithm=ERM(), **options), root.parent / "run", RunOptions(data=root))
    return root, root.parent / "run"
