"""Test the index of a sweep: it is used only if it is valid."""

import subprocess
import sys

import pytest

from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.runs import plan_index
from pogm.benchmark.runs.plan_index import INDEX, count_states, read_plan_index, write_plan_index
from pogm.benchmark.runs.sweep_directory import save_sweep, status
from pogm.cli import main
from pogm.data.datasets import dataset_class


@pytest.fixture
def folder(tmp_path):
    """A sweep of 24 runs, four of which are done, and its index."""
    sweep = Sweep(("ERM", "POGM"), (dataset_class("RotatedDigits")(),), configurations=2, trials=1)
    save_sweep(sweep, tmp_path / "sweep")
    for planned in sweep.plan()[:4]:
        (tmp_path / "sweep" / planned.id).mkdir()
        (tmp_path / "sweep" / planned.id / "done").write_text("done")
    status(tmp_path / "sweep")
    return tmp_path / "sweep"


def test_index_gives_the_counts_of_the_plan(folder):
    assert count_states(folder, read_plan_index(folder)) == status(folder)
    assert status(folder)["RotatedDigits", "ERM"] == {"done": 2, "waiting": 10}


@pytest.mark.parametrize("change", ["flip", "cut", "empty", "sweep", "code", "link"])
def test_index_that_is_damaged_or_outdated_is_not_used(folder, monkeypatch, change, capsys):
    path = folder / INDEX
    content = path.read_bytes()
    if change == "flip":
        path.write_bytes(content.replace(b"ERM", b"ERN"))
    elif change == "cut":
        path.write_bytes(content[:-1])
    elif change == "empty":
        path.write_bytes(b"")
    elif change == "sweep":
        (folder / "sweep.json").write_bytes((folder / "sweep.json").read_bytes() + b"\n")
    elif change == "code":
        monkeypatch.setattr(plan_index.pogm, "__version__", "another")
    else:
        path.unlink()
        path.mkdir()
    assert read_plan_index(folder) is None
    assert main(["status", str(folder)]) == 0
    assert "24 runs: 4 done" in capsys.readouterr().out


def test_status_works_in_a_folder_that_cannot_be_written_to(folder, monkeypatch, capsys):
    (folder / INDEX).unlink()
    monkeypatch.setattr("os.replace", lambda *_: (_ for _ in ()).throw(PermissionError(13, "Permission denied")))
    assert main(["status", str(folder)]) == 0
    assert "24 runs: 4 done" in capsys.readouterr().out
    assert not (folder / INDEX).exists()


def test_sweep_of_another_package_has_no_index(folder):
    (folder / INDEX).unlink()
    write_plan_index(folder, [(("Toy", "package:Mine"), "a" * 16)])
    assert read_plan_index(folder) is None


def test_status_does_not_import_torch(folder):
    code = f"import sys; from pogm.cli import main; main(['status', {str(folder)!r}]); sys.exit('torch' in sys.modules)"
    subprocess.run([sys.executable, "-c", code], check=True)
