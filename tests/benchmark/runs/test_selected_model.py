"""The selected model of a run: the right step, the right weights, and no difference after a resume or in a batch."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from processes import SHORT, pogm, records
from support import trial

from pogm import ERM, POGM, SWAD, load
from pogm._system.errors import IntegrityError
from pogm.benchmark.results.records import Run, read_runs
from pogm.benchmark.results.selection import TRAINING_DOMAIN
from pogm.benchmark.runs.directory import load_trial
from pogm.benchmark.runs.runner import RunOptions, run, run_batch
from pogm.benchmark.runs.selected_model import SelectedModel, remove_unused_weights
from pogm.data.datasets.base import split
from pogm.engine import checkpoint

LONG = {"steps": 61, "evaluate_every": 10}


def model_files(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in (folder / "model").iterdir()}


def read_run(folder: Path) -> Run:
    (found,) = read_runs(folder)
    return found


def accuracy_of(folder: Path, one) -> float:
    """Return the accuracy of the loaded model on the "in" split of the held-out domain, computed anew."""
    model, (domain,) = load(folder), one.test_domains
    images, labels = one.dataset.load(None, one.data_seed)[domain][:2]
    chosen, _ = split(len(labels), domain, one.trial_seed)
    inputs = model.transform.transform.to_inputs(images[chosen], torch.float32)
    return float((model(inputs).argmax(-1) == labels[chosen]).double().mean())


@pytest.mark.parametrize("algorithm", [ERM(), POGM(inner_steps=2)], ids=["ERM", "POGM"])
def test_model_is_the_one_that_training_domain_selection_chooses(tmp_path, algorithm):
    one = trial(algorithm, **LONG)
    run(one, tmp_path / "run")
    (choice,) = TRAINING_DOMAIN([read_run(tmp_path / "run")])
    description = json.loads((tmp_path / "run/model/model.json").read_text())
    assert description["selection"]["step"] == choice.step
    assert description["selection"]["validation"] == choice.validation
    assert accuracy_of(tmp_path / "run", one) == pytest.approx(choice.accuracy, abs=1e-12)
    assert len(model_files(tmp_path / "run")) == 2


def test_model_of_swad_has_the_averaged_weights(tmp_path):
    one = trial(ERM(), modifiers=(SWAD(),), **LONG)
    run(one, tmp_path / "run")
    final = read_run(tmp_path / "run").final
    description = json.loads((tmp_path / "run/model/model.json").read_text())
    assert description["selection"]["step"] == final["step"]
    assert accuracy_of(tmp_path / "run", one) == pytest.approx(final["accuracy"]["in"][0], abs=1e-12)


def test_trials_of_a_batch_have_the_models_of_single_runs(tmp_path):
    trials = [trial(ERM(), seed=seed, **LONG) for seed in range(3)]
    folders = [tmp_path / str(seed) for seed in range(3)]
    assert run_batch(trials, folders, RunOptions()) == [None] * 3
    for one, folder in zip(trials, folders, strict=True):
        run(one, folder / "alone")
        batch, alone = (json.loads((f / "model/model.json").read_text()) for f in (folder, folder / "alone"))
        assert batch["selection"]["step"] == alone["selection"]["step"]
        x = torch.rand(5, 1, 8, 8)
        torch.testing.assert_close(load(folder)(x), load(folder / "alone")(x), rtol=1e-3, atol=1e-4)


# With this learning rate the best step is 20, before most interruptions: a run that forgets it on resume is found.
WORDS = ("--dataset", "RotatedDigits", *SHORT, "--algorithm", "ERM", "--steps", 61, "--set", "lr=0.2", "--seed", 2)


@pytest.fixture(scope="module")
def clean(tmp_path_factory) -> Path:
    """A run without interruption."""
    folder: Path = tmp_path_factory.mktemp("clean") / "run"
    assert pogm("run", *WORDS, "--out", folder).code == 0
    return folder


@pytest.mark.parametrize("fault", ["kill@step:25", "kill@step:45", "term@step:33", "kill@write:7", "kill@replace:8"])
def test_model_is_the_same_after_an_interruption(tmp_path, clean, fault):
    stopped = tmp_path / "stopped"
    assert pogm("run", *WORDS, "--out", stopped, fault=fault).code in (-signal.SIGKILL, 75)
    assert pogm("resume", stopped, "--device", "cpu", "--checkpoint-seconds", 0).code == 0
    assert records(stopped) == records(clean)
    assert model_files(stopped) == model_files(clean)


def test_run_of_an_earlier_version_resumes_and_its_best_step_is_that_of_the_records(tmp_path):
    words = ("--dataset", "RotatedDigits", *SHORT, "--algorithm", "ERM", "--steps", 61)
    folder = tmp_path / "run"
    assert pogm("run", *words, "--out", folder, fault="term@step:45").code == 75
    for path in (folder / "checkpoints").glob("*.json"):
        manifest = json.loads(path.read_text())
        del manifest["selected"]
        path.write_text(json.dumps(manifest))
    for path in (folder / "model").iterdir():
        path.unlink()
    assert pogm("resume", folder, "--device", "cpu").code == 0
    scores = {record["step"]: sum(record["accuracy"]["out"][1:]) for record in records(folder)}
    best = max(scores, key=scores.get)
    if best > 40:
        assert json.loads((folder / "model/model.json").read_text())["selection"]["step"] == best
    else:
        assert not model_files(folder)


@pytest.mark.parametrize("damage", ["flipped", "missing"])
def test_damaged_weights_of_the_selected_step_are_refused_at_a_resume(tmp_path, clean, damage):
    folder = shutil.copytree(clean, tmp_path / "run")
    (folder / "done").unlink()
    (path,) = folder.glob("model/weights-*.safetensors")
    content = bytearray(path.read_bytes())
    content[-1] ^= 1
    path.unlink() if damage == "missing" else path.write_bytes(content)
    before = model_files(folder)
    with pytest.raises(IntegrityError, match=f"Expected the weights of the selected step, .* in {path}; found"):
        run(load_trial(folder), folder)
    assert model_files(folder) == before
    assert not (folder / "done").exists()


def test_weights_that_the_description_names_are_kept_while_the_run_continues(tmp_path, clean):
    """A run with a final average that is extended: its checkpoints refer to other weights than its model."""
    folder = shutil.copytree(clean, tmp_path / "run")
    (selected,) = folder.glob("model/weights-*.safetensors")
    final, old = (selected.with_name(f"weights-{step:08d}.safetensors") for step in (90, 91))
    for path in (final, old):
        shutil.copy(selected, path)
    description = json.loads((folder / "model" / "model.json").read_text())
    description["weights"]["file"] = final.name
    (folder / "model" / "model.json").write_text(json.dumps(description))
    remove_unused_weights(folder, folder / "checkpoints")
    assert final.exists()
    assert not old.exists()
    load(folder)


def test_run_on_all_domains_trains_on_each_and_keeps_a_model(tmp_path):
    one = trial(POGM(), **LONG | {"test_domains": ()})
    run(one, tmp_path / "run")
    assert one.train_domains == (0, 1, 2, 3, 4, 5)
    found = read_run(tmp_path / "run")
    assert len(found.records[-1]["metrics"]["mixture"]) == 6
    description = json.loads((tmp_path / "run/model/model.json").read_text())
    assert (len(description["domains"]), description["held_out"]) == (6, [])
    assert TRAINING_DOMAIN([found]) == []  # nothing to report in tables


def test_first_of_equal_steps_is_selected():
    found = SelectedModel()
    for step, validation in ((0, 0.5), (10, 0.7), (20, 0.7), (30, float("nan")), (40, 0.6)):
        found.consider(step, validation, dict)
    assert found.to_json() == {"step": 10, "validation": 0.7}


def test_a_run_of_a_sweep_writes_no_last_checkpoint_and_keeps_one_model(tmp_path, monkeypatch):
    """Nothing can extend it, so the last checkpoint would be deleted at once; for large networks it has gigabytes."""
    one, written = trial(ERM()), []
    real = checkpoint.save
    monkeypatch.setattr(
        checkpoint, "save", lambda *args, **facts: written.append(facts["after"]) or real(*args, **facts)
    )
    for folder, options, expected in (
        (tmp_path / "single", RunOptions(), [one.steps - 1]),
        (tmp_path / one.id, RunOptions(), []),
        (tmp_path / "sweep" / one.id, RunOptions(checkpoint_seconds=0), one.schedule.points()[:-1]),
    ):
        run(one, folder, options)
        assert written == expected
        assert len(list(folder.glob("model/weights-*.safetensors"))) == 1
        assert (folder / "checkpoints").exists() == (folder.name == "single")
        written.clear()
