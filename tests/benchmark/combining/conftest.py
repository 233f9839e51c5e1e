"""Finished runs that tests combine. Tests copy the folder before they change it."""

import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from combined_runs import member, train


@pytest.fixture(scope="session")
def trained(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Four finished runs of one held-out domain."""
    folder = tmp_path_factory.mktemp("combining") / "sweep"
    folder.mkdir()
    return train(folder, *map(member, range(4)))


@pytest.fixture
def sweep(trained: Path, tmp_path: Path) -> Path:
    """A copy of the finished runs."""
    return Path(shutil.copytree(trained, tmp_path / "sweep"))


@pytest.fixture
def add_run(sweep: Path) -> Callable[..., Path]:
    """Return a function that trains another run into the copy, with other fields of the trial."""

    def add(**options: Any) -> Path:
        return train(sweep, member(4, **options))

    return add
