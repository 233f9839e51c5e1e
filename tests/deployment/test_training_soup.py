"""``pogm train --soup N``: the forecast and the model are those of greedy soups; stops, refusals, time limits."""

import json
import os
import shutil
import signal
import time
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace

import pytest
import torch
from processes import Finished, pogm, start
from sample_files import OPTIONS, write_table
from test_training import SMALL, contents

from pogm import load
from pogm._system.errors import UsageError
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.classification import classification_metrics, softmax
from pogm.benchmark.runs.directory import load_trial
from pogm.benchmark.runs.runner import RunOptions
from pogm.data.datasets.folder import Folder
from pogm.deployment import training_plan
from pogm.deployment.model import TrainedModel
from pogm.deployment.training import fit_model_temperature, held_out_results, predict_site, predict_validation
from pogm.deployment.training_plan import make_plan, plan_deadlines, steps_in_time
from pogm.engine.engine import Engine

NETWORK = ["network=small_cnn", "weights=random"]
RUNS = 3  # of each soup


def words_for(root: Path, out: Path) -> list[object]:
    return ["train", root, *SMALL, "--steps", 30, "--soup", RUNS, "--hold-out", "c", "--out", out]


@pytest.fixture(scope="module")
def averaged(photographs, tmp_path_factory) -> Path:
    """Model of the sites a and b, with c held out: a soup of three runs."""
    folder = tmp_path_factory.mktemp("averaged") / "model"
    end = pogm(*words_for(photographs[0], folder), "--json", folder.parent / "result.json")
    assert end.code == 0, end.err
    number = len(kept_of(folder, ["c"]))
    assert number > 1, "else nothing is averaged"
    assert f"Model: {folder} (ERM, mean of {number} of 3 runs), with its card: " in end.out
    assert json.loads((folder.parent / "result.json").read_text())["averaged_runs"] == number
    return folder


def runs_of(folder: Path, held_out: list[str]) -> list[Path]:
    """Return the folders of the runs that hold out these sites, the first run of the average first."""
    found = [path.parent for path in folder.glob("runs/*/trial.json")]
    found = [run for run in found if sorted(load(run).description["held_out"]) == held_out]
    return sorted(found, key=lambda run: load_trial(run).hparams_seed)


def kept_of(folder: Path, held_out: list[str]) -> list[Path]:
    """Return the runs that soups of these runs have kept."""
    kept = {run for path in folder.glob("soup/*/trial.json") for run in json.loads(path.read_text())["members"]}
    return [run for run in runs_of(folder, held_out) if run.name in kept]


def mean_by_hand(runs: list[Path]) -> TrainedModel:
    """Return the first of the models, with the mean of the weights of all."""
    models = [load(run) for run in runs]
    parameters = zip(*(model.network.parameters() for model in models), strict=True)
    for target, *others in parameters:
        target.copy_(torch.stack([target.double(), *(other.double() for other in others)]).mean(0).float())
    return models[0]


def without_times(folder: Path) -> dict[str, object]:
    """Return the files of a model without the times of its runs."""
    files = contents(folder)
    description = json.loads(files["model.json"])
    for part in (description["combination"], *description["combination"]["members"]):
        del part["seconds"]
    return {**files, "model.json": description}


def test_one_run_is_planned_as_without_the_option(photographs):
    dataset = Folder.from_path(photographs[0])
    before, plan = (make_plan(dataset, ["ERM", "Fish"], ("c",), NETWORK, 30, **more) for more in ({}, {"soup": 3}))
    assert before.trials == [trial for trials in before.forecasts.values() for trial in trials]
    assert before.members(before.finals["ERM"]) == [before.finals["ERM"]]
    assert (plan.forecasts, plan.finals) == (before.forecasts, before.finals)
    assert plan.trials[: len(before.trials)] == before.trials, "first, because a time limit can stop the others"
    alone = make_plan(dataset, ["ERM"], ("c",), NETWORK, 30)
    assert alone.first_trials == [*alone.forecasts["ERM"], alone.finals["ERM"]]


def test_runs_of_an_average_differ_in_their_minibatches_only(photographs):
    plan = make_plan(Folder.from_path(photographs[0]), ["ERM"], (), NETWORK, 30, 3, seed=7)
    first, *others = plan.members(plan.finals["ERM"])
    assert len({trial.seed for trial in (first, *others)}) == 3
    for trial in others:
        assert trial.weights_seed == 7
        assert replace(trial, seed=7, init_seed=None, hparams_seed=0) == first
    assert len({trial.id for trial in plan.first_trials}) == len(plan.first_trials) == 12


def test_model_is_the_naive_mean_of_the_final_runs_that_are_kept(averaged):
    runs = kept_of(averaged, ["c"])
    model, expected, single = load(averaged), mean_by_hand(runs), load(runs[0])
    assert [name for name, _ in model.named_parameters()] == [name for name, _ in expected.named_parameters()]
    for found, mean in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, mean, rtol=1e-6, atol=1e-8)
    assert not all(map(torch.equal, model.parameters(), single.parameters()))


def test_forecast_and_temperature_are_those_of_averaged_models(averaged, photographs):
    description = json.loads((averaged / "model.json").read_text())
    for number, site in enumerate("ab"):
        assert len(runs_of(averaged, [site, "c"])) == RUNS
        runs = kept_of(averaged, [site, "c"])
        found, single = description["sites"][site], None
        for model in (mean_by_hand(runs), load(runs[0])):
            result = predict_site(model, load_trial(runs[0]), number, photographs[0])
            metrics = classification_metrics(softmax(result.logits.numpy()), result.labels.numpy(), model.classes)
            single, expected = metrics, single or metrics
        assert found["accuracy"]["value"] == expected.accuracy.value
        assert found["nll"] == pytest.approx(expected.nll, rel=1e-5)
        assert found["nll"] != pytest.approx(single.nll, rel=1e-3)
    accuracies = [site["accuracy"]["value"] for site in description["sites"].values()]
    assert description["forecast"]["accuracies"] == accuracies
    (run, *_) = runs_of(averaged, ["c"])
    validation = predict_validation(load(averaged), load_trial(run), photographs[0])
    assert description["temperature"] == fit_model_temperature(validation)


def test_card_and_description_name_the_average(averaged):
    card, description = (averaged / "card.md").read_text(), load(averaged).description
    assert (description["algorithm"], description["soup"]) == ("ERM, greedy soup", RUNS)
    kept = [member for member in description["combination"]["members"] if member["kept"]]
    assert description["combination"]["kept"] == len(kept)
    assert f"- **Averaged runs**: {len(kept)} of 3" in card
    assert ("the validation accuracy left out" in card) is (len(kept) < RUNS)
    assert "the time limit" not in card
    steps = ", ".join(str(member["step"]) for member in kept)
    assert f"- **Selected steps**: {steps}, by training-domain validation\n" in card
    assert f"trained with ERM on 2 sites: a, b. Its weights are the mean of those of {len(kept)} runs" in card
    assert "Averaged runs" in (averaged / "card.html").read_text()
    assert str(averaged.parent) not in (averaged / "model.json").read_text()


@pytest.mark.parametrize("stop", ["first run", "between runs", "averaging"])
def test_interrupted_training_continues_with_the_same_bits(averaged, photographs, tmp_path, stop):
    """A signal during the first run, a kill after it, and a kill while the second average is written."""
    words = words_for(photographs[0], tmp_path / "model")
    if stop == "averaging":
        assert pogm(*words, fault="kill@combination:2").code == -signal.SIGKILL
        assert len(list((tmp_path / "model/soup").glob("*/done"))) == 1
    else:
        number, after, code = {
            "first run": (signal.SIGTERM, "*/records.jsonl", 75),
            "between runs": (signal.SIGKILL, "*/done", -9),
        }[stop]
        started = start(*words)
        while started.process.is_alive() and not list((tmp_path / "model/runs").glob(after)):
            time.sleep(0.05)
        os.kill(started.process.pid, number)
        assert started.wait().code == code
    assert not (tmp_path / "model/model.json").exists()
    end = repeat(words)
    assert end.code == 0, end.err
    assert without_times(tmp_path / "model") == without_times(averaged)


def repeat(words: list[object]) -> Finished:
    """Give a command again; a worker lives a little longer than its parent that was killed."""
    while "another process still trains" in (end := pogm(*words)).err:
        time.sleep(0.5)
    return end


def test_same_command_again_computes_no_average_again(averaged, photographs):
    before = {path: path.stat().st_mtime_ns for path in averaged.glob("soup/*/done")}
    assert len(before) == 3
    assert pogm(*words_for(photographs[0], averaged)).code == 0
    assert {path: path.stat().st_mtime_ns for path in before} == before
    end = pogm(*words_for(photographs[0], averaged)[:-4], "--soup", 2, "--hold-out", "c", "--out", averaged)
    assert end.code == 2
    assert "found others for soup" in end.err


def test_runs_without_a_model_at_the_time_limit_are_left_out(averaged, photographs, tmp_path, capsys):
    folder = Path(shutil.copytree(averaged, tmp_path / "model"))
    dataset, options = Folder.from_path(photographs[0]), RunOptions(data=photographs[0])
    trial = load_trial(runs_of(averaged, ["c"])[0])
    settings = [*NETWORK, "image_size=32", "batch_size=4", "lr=1e-3"]
    plan = make_plan(dataset, ["ERM"], ("c",), settings, 30, RUNS)
    assert plan.finals["ERM"].id == trial.id
    cut, (first, second, third) = set(), runs_of(averaged, ["a", "c"])
    for missing, left in ((third, [first, second]), (second, [first])):
        shutil.rmtree(folder / "runs" / missing.name)
        cut.add(missing.name)
        result = next(held_out_results(plan, "ERM", folder, ("c",), options, cut))
        kept = kept_of(folder, ["a", "c"]) if len(left) > 1 else left
        expected = predict_site(mean_by_hand(kept), load_trial(first), 0, photographs[0])
        torch.testing.assert_close(result.logits, expected.logits, rtol=1e-4, atol=1e-5)
        assert f"ERM, held out c, a: {len(left)} of 3 runs give the model; the time limit" in capsys.readouterr().err


def test_compared_algorithms_are_averaged(photographs, tmp_path):
    folder = tmp_path / "model"
    more = ("--compare", "ERM", "ERM + SMA", "--soup", 2, "--steps", 12, "--out", folder)
    end = pogm("train", photographs[0], *SMALL, *more)
    assert end.code == 0, end.err
    description = load(folder).description
    means = {name: found["mean"] for name, found in description["compared"].items()}
    chosen = max(means, key=means.get)
    assert list(means) == ["ERM", "ERM + SMA"]
    assert description["algorithm"] == f"{chosen}, greedy soup"
    assert description["domains"] == ["a", "b", "c"]
    assert len(list(folder.glob("runs/*/done"))) == 2 * 2 * 3 + 2
    assert len(list(folder.glob("soup/*/done"))) == 2 * 3 + 1
    model, expected = load(folder), mean_by_hand([r for r in kept_of(folder, []) if label(r) == chosen])
    for found, mean in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, mean, rtol=1e-6, atol=1e-8)


def label(run: Path) -> str:
    trial: Trial = load_trial(run)
    return trial.label


def test_models_that_cannot_be_averaged_are_refused_before_the_training(photographs, tmp_path):
    """ARM adapts with a network that has batch norm. T3A and MTL adapt, too, but their weights can be averaged."""
    end = pogm("train", photographs[0], *SMALL, "--algorithm", "ARM", "--soup", 2, "--out", tmp_path / "model")
    assert end.code == 2
    assert "Expected batch norm with frozen statistics, to average the weights of ARM" in end.err
    assert "Leave --soup out, or choose another algorithm." in end.err
    assert not (tmp_path / "model").exists()
    dataset = Folder.from_path(photographs[0])
    with pytest.raises(UsageError, match="weights of ARM"):
        make_plan(dataset, ["ERM", "ARM"], (), NETWORK, 30, 2)
    assert make_plan(dataset, ["ARM"], (), NETWORK, 30).soup == 1
    assert len(make_plan(dataset, ["MTL", "ERM + T3A"], (), NETWORK, 30, 2).trials) == 12


def test_time_and_dry_run_count_all_runs(photographs, tmp_path, monkeypatch):
    end = pogm("train", photographs[0], *SMALL, "--steps", 30, "--soup", 3, "--dry-run", "--out", tmp_path / "model")
    assert end.code == 0, end.err
    assert "9 runs that hold out a site, then 3 on all sites; 30 minibatches each." in end.out
    assert "ERM  12 runs" in end.out
    assert not (tmp_path / "model").exists()
    monkeypatch.setattr(training_plan, "measure_cost", lambda trial, options: (0.5, 2.0, 1.0))
    monkeypatch.setattr(training_plan, "time", SimpleNamespace(monotonic=lambda: 100.0))
    dataset, options = Folder.from_path(photographs[0]), RunOptions(engine=Engine("cpu"))
    # As in test_time_budget_chooses_the_number_of_minibatches, with twice as many runs. Each of eight runs, as many
    # averages, and four soups predict the validation images, which takes the time of an evaluation.
    plan = make_plan(dataset, ["ERM"], (), NETWORK, 100, 2)
    assert steps_in_time(plan, 580, options, workers=2) == int((360 - 4 * 24 - 5 * 2 - 20 * 2) / (4 * 0.5))
    with pytest.raises(UsageError, match="minibatches in each of 8 runs"):
        steps_in_time(plan, 130, options, workers=2)
    # Twelve runs of two algorithms, then two on all sites.
    compared = make_plan(dataset, ["ERM", "Fish"], (), NETWORK, 100, 2)
    expected = (100 + 6 / 7 * 0.9 * 480, 100 + 0.9 * 480)
    assert plan_deadlines(compared, 580, options, workers=2) == pytest.approx(expected)


@pytest.mark.parametrize("regression", [False, True], ids=["classes", "numbers"])
def test_table_is_trained_evaluated_and_predicted(tmp_path, regression):
    table, folder = write_table(tmp_path / "table.csv", regression), tmp_path / "model"
    more = ("--steps", 40, "--set", "lr=0.01", "--device", "cpu", "--workers", 1, "--soup", 2)
    end = pogm("train", f"{table}:{OPTIONS},domain=site", *more, "--hold-out", "d", "--out", folder)
    assert end.code == 0, end.err
    model, expected = load(folder), mean_by_hand(kept_of(folder, ["d"]))
    for found, mean in zip(model.parameters(), expected.parameters(), strict=True):
        torch.testing.assert_close(found, mean, rtol=1e-6, atol=1e-8)
    assert ("temperature" in model.description) is not regression
    assert pogm("evaluate", folder, f"{table}", "--site", "d").code == 0
    assert pogm("predict", folder, table, "--csv", tmp_path / "predictions.csv").code == 0
    assert len((tmp_path / "predictions.csv").read_text().splitlines()) == 121


def test_folder_of_images_is_evaluated_predicted_and_exported(averaged, photographs, tmp_path):
    end = pogm("evaluate", averaged, photographs[0] / "c", "--json", tmp_path / "c.json")
    assert end.code == 0, end.err
    assert "ERM, greedy soup, small_cnn" in end.out
    assert pogm("predict", averaged, photographs[0] / "c", "--csv", tmp_path / "c.csv").code == 0
    assert len((tmp_path / "c.csv").read_text().splitlines()) == 13
    assert pogm("export", averaged, "--to", "torch-export", "--out", tmp_path / "model.pt2").code == 0
