"""Every file that commands read, with random damage: one message and an allowed exit code."""

import json
import os
import shutil
import tempfile
from collections import Counter
from pathlib import Path

import pytest
from fuzzing import assert_one_message, changed_bytes, changed_value, few
from hypothesis import given
from hypothesis import strategies as st
from image_folders import write_folder

from pogm._system import fault_injection
from pogm._system.errors import StoppedError
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.benchmark.runs.sweep_directory import index_plan, save_plan, save_sweep
from pogm.cli import main
from pogm.data.datasets.colored_digits import ColoredDigits

pytestmark = [pytest.mark.fuzz, pytest.mark.filterwarnings("ignore")]

REPORT = ["report . --format json", "status ."]
RESUME = ["resume stopped --device cpu"]
READERS = {  # files, and commands that read them
    "done/records.jsonl": REPORT,
    "done/trial.json": REPORT,
    "done/done": REPORT,
    "done/metrics.json": REPORT,
    "failed/failed.json": [*REPORT, "resume . --dry-run"],
    "sweep.json": [*REPORT, "resume . --dry-run"],
    "plan_index.json": ["status ."],
    "planned/plan.json": ["status planned"],
    "done/model/model.json": ["export done --to safetensors --out model"],
    "stopped/trial.json": RESUME,
    "stopped/records.jsonl": RESUME,
    "stopped/checkpoints/00000002-00000001.json": RESUME,
    "stopped/checkpoints/00000002-00000001.safetensors": RESUME,
    "jobs/job/results.jsonl": ["report jobs --format csv"],
    "sites/metadata.csv": ["data check sites/metadata.csv"],
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """A sweep with a finished, a stopped and a failed run, and other files; the names of the runs."""
    root = tmp_path_factory.mktemp("fuzz") / "runs"
    sweep = Sweep(("ERM",), (ColoredDigits(),), configurations=1, trials=1, steps=2, evaluate_every=1)
    save_sweep(sweep, root)
    trials = sweep.plan()
    index_plan(trials, root)
    save_plan(trials, root / "planned")
    done, stopped, failed = (root / trial.id for trial in trials)
    run(trials[0], done)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fault_injection, "_passed", Counter())
        patch.setenv("POGM_FAULT", "term@step:2")
        with pytest.raises(StoppedError):
            run(trials[1], stopped, RunOptions(checkpoint_seconds=0))
    failed.mkdir()
    (failed / "failed.json").write_text(json.dumps({"error": "a reason"}))
    assert main(["export", str(done), "--out", str(root / "jobs")]) == 0
    (job,) = (path for path in (root / "jobs").iterdir() if path.is_dir())
    job.rename(root / "jobs" / "job")
    sites = write_folder(root / "sites", images=2)
    lines = [f"{path.relative_to(sites)},{path.parts[-2]},{path.parts[-3]}" for path in sorted(sites.rglob("*.png"))]
    (sites / "metadata.csv").write_text("\n".join(["path,label,domain", *lines]) + "\n")
    return root, {"done": done.name, "stopped": stopped.name, "failed": failed.name}


@pytest.mark.parametrize("name", READERS)
def test_a_damaged_file_gives_one_message_and_an_allowed_exit_code(folder, tmp_path, monkeypatch, name):
    root, names = folder
    path = Path(*(names.get(part, part) for part in Path(name).parts[:-1]), Path(name).name)
    content = (root / path).read_bytes()
    damaged = changed_bytes(content)
    if name.endswith((".json", ".jsonl")):
        damaged |= changed_value(content)
    monkeypatch.chdir(tmp_path)

    @few(4)
    @given(damaged, st.sampled_from(READERS[name]))
    def check(damaged, command):
        with tempfile.TemporaryDirectory() as scratch:
            os.chdir(shutil.copytree(root, Path(scratch) / "runs"))
            path.write_bytes(damaged)
            assert_one_message([names.get(word, word) for word in command.split()])
            os.chdir(tmp_path)

    check()
