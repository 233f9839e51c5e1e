"""The commit of the package, in the provenance of a run."""

import shutil
import subprocess
from pathlib import Path

import pytest
from support import trial

from pogm import ERM
from pogm._system.commit import find_commit
from pogm.benchmark.runs.provenance import DECISIVE, read_provenance
from pogm.benchmark.runs.runner import run

AUTHOR = ("-c", "user.name=a", "-c", "user.email=a@example.org", "-c", "commit.gpgsign=false")


def git(folder: Path, *words: str) -> str:
    done = subprocess.run(["git", *AUTHOR, *words], cwd=folder, capture_output=True, text=True, check=True)
    return done.stdout.strip()


@pytest.fixture
def source(tmp_path, monkeypatch):
    """Return the folder ``src`` of a checkout with one commit."""
    if shutil.which("git") is None:
        pytest.skip("git is not installed")
    for name in ("GIT_DIR", "GIT_INDEX_FILE", "GIT_WORK_TREE"):
        monkeypatch.delenv(name, raising=False)
    find_commit.cache_clear()
    folder = tmp_path / "checkout" / "src"
    folder.mkdir(parents=True)
    (folder / "module.py").write_text("1\n")
    (folder.parent / "README.md").write_text("1\n")
    git(folder.parent, "init")
    git(folder.parent, "add", ".")
    git(folder, "commit", "-m", "first")
    return folder


def test_commit_is_the_whole_hash_and_says_if_tracked_files_of_the_package_differ(source):
    first = git(source, "rev-parse", "HEAD")
    (source / "untracked.py").touch()
    (source.parent / "README.md").write_text("2\n")
    assert find_commit(source) == first
    (source / "module.py").write_text("2\n")
    assert find_commit(source) == first, "it is read once in a process"
    find_commit.cache_clear()
    assert find_commit(source) == f"{first}+changes"


def test_commit_does_not_depend_on_the_variables_of_a_git_hook(source, tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_DIR", str(tmp_path / "another" / ".git"))
    assert find_commit(source) is not None


def test_an_installed_package_and_a_machine_without_git_have_no_commit(source, monkeypatch):
    """The folder of packages can be inside the checkout of another project."""
    (source.parent / "site-packages").mkdir()
    assert find_commit(source.parent / "site-packages") is None
    monkeypatch.setenv("PATH", "")
    assert find_commit(source) is None


def test_provenance_of_a_run_has_the_commit_which_does_not_decide_its_bits(tmp_path, monkeypatch):
    monkeypatch.setattr("pogm.benchmark.runs.session_facts.find_commit", lambda: "f" * 40)
    run(trial(ERM()), tmp_path / "run")
    assert read_provenance("commit", tmp_path / "run") == "f" * 40
    assert "commit" not in DECISIVE
