"""``pogm train``: forecast, model and card from a folder; interruptions and bad input."""

import json
import os
import pickle
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import CONTEXT, pogm, start

from pogm import load
from pogm._system.errors import DataError, UsageError
from pogm._system.files import lock_folder
from pogm.benchmark.executors import local, worker
from pogm.benchmark.results.classification import fit_temperature
from pogm.benchmark.runs.runner import RunOptions
from pogm.cli import main, train
from pogm.data.datasets.folder import Folder
from pogm.deployment import training_plan
from pogm.deployment.forecast import SiteResult, forecast
from pogm.deployment.training import fit_model_temperature, held_out_results
from pogm.deployment.training_plan import make_plan, plan_deadlines, steps_in_time
from pogm.engine.session import Engine

SMALL = (
    *("--network", "small_cnn", "--set", "weights=random", "--set", "image_size=32", "--set", "batch_size=4"),
    *("--set", "lr=1e-3", "--device", "cpu", "--workers", 1, "--checkpoint-seconds", 0),
)


def contents(folder: Path) -> dict[str, bytes]:
    """Return the files of a model, without the card in HTML, which has the time of writing."""
    return {path.name: path.read_bytes() for path in folder.iterdir() if path.is_file() and path.suffix != ".html"}


@pytest.fixture(scope="module")
def trained(photographs, tmp_path_factory) -> Path:
    """Model of the sites a and b, with c held out."""
    folder = tmp_path_factory.mktemp("trained") / "model"
    end = pogm("train", photographs[0], *SMALL, "--steps", 30, "--hold-out", "c", "--out", folder)
    assert end.code == 0, end.err
    assert "Expected accuracy at a new site" in end.out
    assert f"Next: pogm evaluate {folder} {photographs[0]}/c" in end.out
    return folder


def test_model_is_trained_on_all_sites_that_are_not_held_out(trained):
    model = load(trained)
    assert model.description["domains"] == ["a", "b"]
    assert model.description["held_out"] == ["c"]
    assert model.classes == ("blue", "red")
    assert model.description["temperature"] > 0


def test_no_temperature_is_fitted_if_all_validation_images_are_right():
    """The likelihood would increase down to the lowest temperature, which makes every probability 0 or 1."""
    logits, labels = torch.tensor([[1.0, 0.0], [0.0, 0.5], [0.0, 2.0]]), torch.tensor([0, 1, 1])
    assert fit_model_temperature(SiteResult("validation", logits, labels)) == 1
    wrong = fit_model_temperature(SiteResult("validation", logits, torch.tensor([0, 0, 1])))
    assert wrong == pytest.approx(fit_temperature(logits.numpy(), [0, 0, 1]))
    assert wrong != 1


def test_forecast_is_that_of_the_held_out_sites(trained):
    description = json.loads((trained / "model.json").read_text())
    accuracies = [site["accuracy"]["value"] for site in description["sites"].values()]
    assert list(description["sites"]) == ["a", "b"]
    expected = forecast(accuracies, counts=[12, 12])
    found = description["forecast"]
    assert (found["mean"], found["low"], found["high"]) == pytest.approx((expected.mean, expected.low, expected.high))
    for site in description["sites"].values():
        assert site["accuracy"]["n"] == 12


def test_card_has_all_sections_and_no_path(trained):
    card, page = (trained / "card.md").read_text(), (trained / "card.html").read_text()
    assert "ECE and NLL are those of the probabilities before temperature scaling." in card
    for title in ("Task", "Accuracy at a new site", "Results by site", "Calibration", "Hardest images", "Limitations"):
        assert f"## {title}" in card
        assert title in page
    assert "The interval is wide because it rests on 2 sites only." in card
    for text in (card, page, (trained / "model.json").read_text()):
        assert str(trained.parent) not in text
        assert "/tmp" not in text
    assert (trained / "hardest_images.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("out", "to"), [("model.pt2", "torch-export"), ("exported", "onnx")])
def test_export_of_a_model_without_a_format_writes_no_runs(trained, tmp_path, out, to):
    end = pogm("export", trained, "--out", tmp_path / out)
    assert end.code == 2
    assert (
        f"Expected --to FORMAT for a model; found none. Write, for example: pogm export {trained} --to {to}." in end.err
    )
    assert not (tmp_path / out).exists()


def test_report_of_a_model_names_its_card(trained):
    end = pogm("report", trained)
    assert end.code == 2
    assert "found 3 without them. Results of pogm train are in the card of its model" in end.err


def test_new_site_is_evaluated_and_predicted(trained, photographs, tmp_path):
    end = pogm("evaluate", trained, photographs[0] / "c", "--json", tmp_path / "c.json")
    assert end.code == 0, end.err
    assert "12" in end.out
    assert pogm("predict", trained, photographs[0] / "c", "--csv", tmp_path / "c.csv").code == 0
    assert len((tmp_path / "c.csv").read_text().splitlines()) == 13


@pytest.mark.parametrize(
    ("number", "after", "code"), [(signal.SIGTERM, "*/records.jsonl", 75), (signal.SIGKILL, "*/done", -9)]
)
def test_interrupted_training_continues_with_the_same_result(trained, photographs, tmp_path, number, after, code):
    """A signal during the first run, and a kill after it."""
    words = ("train", photographs[0], *SMALL, "--steps", 30, "--hold-out", "c", "--out", tmp_path / "model")
    started = start(*words)
    while started.process.is_alive() and not list((tmp_path / "model/runs").glob(after)):
        time.sleep(0.05)
    os.kill(started.process.pid, number)
    assert started.wait().code == code
    while "another process still trains" in (end := pogm(*words)).err:  # a worker lives a little longer than its parent
        time.sleep(0.5)
    assert end.code == 0, end.err
    assert contents(tmp_path / "model") == contents(trained)


def test_run_that_another_process_still_trains_is_not_used(trained, photographs, tmp_path):
    """The run has a model already, of a step that need not be the selected one."""
    folder = shutil.copytree(trained, tmp_path / "model")
    run = next(done.parent for done in folder.glob("runs/*/done") if load(done.parent).description["held_out"] != ["c"])
    (run / "done").unlink()
    with lock_folder(run):
        end = pogm("train", photographs[0], *SMALL, "--steps", 30, "--hold-out", "c", "--out", folder)
    assert end.code != 0
    assert f"Expected a finished run in {run}; found one that another process still trains" in end.err


def test_compared_algorithms_are_ranked_by_held_out_sites(photographs, tmp_path):
    words = ("train", photographs[0], *SMALL, "--steps", 12, "--compare", "ERM", "Fish", "--out", tmp_path / "model")
    end = pogm(*words)
    assert end.code == 0, end.err
    description = json.loads((tmp_path / "model/model.json").read_text())
    means = {name: found["mean"] for name, found in description["compared"].items()}
    assert list(means) == ["ERM", "Fish"]
    assert description["algorithm"] == max(means, key=means.get)
    assert len(description["domains"]) == 3
    assert "Algorithms compared" in (tmp_path / "model/card.md").read_text()
    assert "paired by site: " in end.out


def test_setting_of_one_compared_algorithm_changes_only_that_one(photographs):
    dataset = Folder.from_path(photographs[0])
    settings = ["network=small_cnn", "weights=random", "POGM.kappa=0.2", "POGM.lr=0.002"]
    plan = make_plan(dataset, ["ERM", "POGM"], (), settings, 100)
    assert plan.finals["POGM"].algorithm.kappa == 0.2
    assert plan.finals["POGM"].training.lr == 0.002
    assert plan.finals["ERM"].training.lr == dataset.training.lr
    with pytest.raises(UsageError, match=r"found 'Fish\.meta_lr=0\.5'\. Add Fish to --compare"):
        make_plan(dataset, ["ERM", "POGM"], (), ["Fish.meta_lr=0.5"], 100)


def test_modifiers_follow_the_name_of_an_algorithm(photographs):
    dataset = Folder.from_path(photographs[0])
    settings = ["network=small_cnn", "weights=random", "SWAD.converge=5"]
    plan = make_plan(dataset, ["ERM", "ERM + Mixup+SWAD"], (), settings, 100)
    assert [trial.label for trial in plan.finals.values()] == ["ERM", "ERM + Mixup + SWAD"]
    assert [len(trials) for trials in plan.forecasts.values()] == [3, 3]
    assert plan.finals["ERM + Mixup+SWAD"].modifiers[1].converge == 5
    with pytest.raises(UsageError, match=r"Expected a modifier out of .*; found 'SWADD'\. Did you mean 'SWAD'"):
        make_plan(dataset, ["ERM + SWADD"], (), [], 100)


def test_time_budget_chooses_the_number_of_minibatches(photographs, monkeypatch):
    monkeypatch.setattr(training_plan, "measure_cost", lambda trial, options: (0.5, 2.0, 1.0))
    monkeypatch.setattr(training_plan, "time", SimpleNamespace(monotonic=lambda: 100.0))
    dataset = Folder.from_path(photographs[0])
    plan = make_plan(dataset, ["ERM"], (), ["network=small_cnn", "weights=random"], 100)
    # Each of two processes trains two of four runs in 0.75 · 480 s. A run spends 12 · 2 s on evaluations and 0.5 s on a
    # minibatch. Predictions of all images of all sites take the time of five evaluations.
    options = RunOptions(engine=Engine("cpu"))
    assert steps_in_time(plan, 580, options, workers=2) == int((360 - 2 * 24 - 5 * 2) / (2 * 0.5))
    assert steps_in_time(plan, 580, options, workers=1) == int((360 - 4 * 24 - 5 * 2) / (4 * 0.5))
    assert plan_deadlines(plan, 580, options, workers=2) == (100 + 0.9 * 480, 100 + 0.9 * 480)
    # With two algorithms, the run on all sites waits for six others.
    compared = make_plan(dataset, ["ERM", "Fish"], (), ["network=small_cnn", "weights=random"], 100)
    assert steps_in_time(compared, 580, options, workers=2) == int((360 - 4 * 24 - 2 * 5 * 2) / (4 * 0.5))
    assert plan_deadlines(compared, 580, options, workers=2) == (100 + 0.75 * 0.9 * 480, 100 + 0.9 * 480)
    # ERM + SMA shares the training of ERM, but not its evaluations.
    shared = make_plan(dataset, ["ERM", "ERM + SMA"], (), ["network=small_cnn", "weights=random"], 100)
    assert steps_in_time(shared, 580, options, workers=3) == int((360 - 2 * 2 * 24 - 2 * 5 * 2) / (2 * 0.5))
    assert plan_deadlines(shared, 580, options, workers=3) == (100 + 0.5 * 0.9 * 480, 100 + 0.9 * 480)
    with pytest.raises(UsageError, match=r"at least 10 minibatches in each of 4 runs; found 30 s.*--minutes"):
        steps_in_time(plan, 130, options, workers=2)


@pytest.mark.parametrize("soup", [1, 2])
def test_runs_that_the_time_limit_stops_give_a_model_and_the_same_command_continues_them(
    photographs, tmp_path, monkeypatch, capsys, soup
):
    """The clock of this test advances by 180 s or 90 s when a further run has been evaluated more often than before."""
    folder = tmp_path / "model"
    known: dict[str, list[str]] = {}

    def read() -> dict[str, list[str]]:
        return {path.parent.name: path.read_text().splitlines() for path in folder.glob("runs/*/records.jsonl")}

    clock = SimpleNamespace(
        monotonic=lambda: 180.0 / soup * sum(len(lines) > len(known.get(name, [""])) for name, lines in read().items())
    )
    for module in (local, training_plan, train):
        monkeypatch.setattr(module, "time", clock)
    monkeypatch.setattr(worker.multiprocessing, "get_context", lambda kind: CONTEXT)
    monkeypatch.setattr(training_plan, "measure_cost", lambda trial, options: (0.3, 0.0, 1.0))
    words = ("train", photographs[0], *SMALL, "--hold-out", "c", "--minutes", 10, "--soup", soup, "--out", folder)
    assert main([str(word) for word in words]) == 0
    assert f"The time limit stopped {3 * soup} runs before their last minibatch" in capsys.readouterr().out
    description = load(folder).description
    assert description["stopped_runs"] == 3 * soup
    assert description.get("combination", {"kept": 1})["kept"] == soup
    card = (folder / "card.md").read_text()
    assert f"A time limit stopped {3 * soup} of the runs before their last minibatch." in card
    known |= read()
    assert main([str(word) for word in words]) == 0
    for name, lines in read().items():
        assert lines[: len(known[name]) - 1] == known[name][:-1]
        assert len(lines) > len(known[name]) >= 2


@pytest.mark.parametrize("soup", [1, 2])
@pytest.mark.parametrize(("method", "missing"), [("ERM", "an evaluation"), ("ERM + SWAD", "the end, where SWAD has")])
def test_stopped_run_without_a_model_says_what_is_missing(photographs, tmp_path, method, missing, soup):
    settings = ("network=small_cnn", "weights=random")
    plan = make_plan(Folder.from_path(photographs[0]), [method], ("c",), settings, 30, soup)
    with pytest.raises(UsageError, match=f"Expected {missing}.*more --minutes"):
        list(held_out_results(plan, method, tmp_path, ("c",), RunOptions(), {trial.id for trial in plan.trials}))


def test_training_that_began_with_other_options_is_refused(trained, photographs):
    end = pogm("train", photographs[0], *SMALL, "--steps", 31, "--hold-out", "c", "--out", trained)
    assert end.code == 2
    assert "found others for steps" in end.err


def test_dry_run_writes_nothing(photographs, tmp_path):
    end = pogm("train", photographs[0], *SMALL, "--steps", 30, "--dry-run", "--out", tmp_path / "model")
    assert end.code == 0, end.err
    assert "3 runs that hold out a site, then one on all sites; 30 minibatches each." in end.out
    assert not (tmp_path / "model").exists()


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--hold-out", "d"), "Expected sites to hold out from a, b, c; found d"),
        (("--hold-out", "a", "--hold-out", "b"), "Expected at least two sites for training; found 1"),
        (("--minutes", 1, "--steps", 5), "Expected --minutes or --steps; found both"),
        (("--algorithm", "POGN"), "Did you mean 'POGM'?"),
    ],
)
def test_bad_input_is_refused_before_anything_is_written(photographs, tmp_path, words, message):
    end = pogm("train", photographs[0], *SMALL, *words, "--out", tmp_path / "model")
    assert end.code == 2
    assert message in end.err
    assert "Traceback" not in end.err
    assert not (tmp_path / "model").exists()


def test_bad_images_are_skipped_on_request(photographs, tmp_path):
    root = shutil.copytree(photographs[0], tmp_path / "sites")
    (root / "a/red/empty.png").touch()
    words = ("train", root, *SMALL, "--algorithm", "ERM", "--steps", 10, "--out", tmp_path / "model")
    refused = pogm(*words)
    assert refused.code == 3
    assert "found a/red/empty.png (empty: no bytes)" in refused.err
    assert not (tmp_path / "model").exists()
    assert pogm(*words, "--on-bad-image", "skip", "--dry-run").code == 0


def test_one_class_is_refused(photographs):
    dataset = replace(Folder.from_path(photographs[0]), classes=("red",))
    plan = make_plan(dataset, ["ERM"], (), ["network=small_cnn", "weights=random"], 100)
    with pytest.raises(DataError, match=r"at least two classes in sites; found 1\."):
        training_plan.check_data(plan, [])


def test_site_that_is_held_out_twice_is_held_out_once(photographs):
    plan = make_plan(Folder.from_path(photographs[0]), ["ERM"], ("c", "c"), ["network=small_cnn"], 100)
    assert [trial.test_domains for trial in plan.trials] == [(2, 0), (2, 1)]


def test_weights_that_would_run_code_are_refused_before_anything_is_written(photographs, tmp_path):
    (tmp_path / "model.pkl").write_bytes(pickle.dumps({"conv1.weight": print}))
    words = ("--weights", tmp_path / "model.pkl", "--network", "mobilenet_v2", "--steps", 10, "--out", tmp_path / "out")
    end = pogm("train", photographs[0], *words)
    assert end.code == 6
    assert end.err.count("Expected only tensors in model.pkl") == 1
    assert not (tmp_path / "out").exists()
