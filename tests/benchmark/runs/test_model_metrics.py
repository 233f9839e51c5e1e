"""Metrics of the selected model: those of its step in the records, in every way to run a trial.

`test_runner.py` compares them after kills at any write, `test_torchrun.py` with those of several processes.
"""

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load, save
from support import trial

import pogm as package
from pogm import ARM, ERM, ITTA, MTL, SWAD, T3A, TENT
from pogm._system.files import digest
from pogm.benchmark.results.classification import classification_metrics, fit_temperature, scale_temperature, softmax
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.selection import TEST_DOMAIN, TRAINING_DOMAIN
from pogm.benchmark.runs.model_metrics import MetricsWarning, write_metrics
from pogm.benchmark.runs.runner import RunOptions, run, run_batch
from pogm.data.datasets import dataset_class
from pogm.data.datasets.base import split
from pogm.engine.session import Engine, Session

CNN = replace(dataset_class("RotatedDigits")().training, network="small_cnn")
FEW = {"steps": 4, "evaluate_every": 3}


def metrics_of(folder: Path) -> dict[str, Any]:
    content: dict[str, Any] = json.loads((folder / "metrics.json").read_text())
    return content


def reported(one) -> list[tuple[int, str]]:
    """Return the domains and splits that metrics.json has for a trial."""
    return [*((domain, "in") for domain in one.test_domains), *((domain, "out") for domain in one.train_domains)]


def assert_accuracies_of_the_records(folder: Path, one) -> None:
    """Assert that metrics.json has the selected step, and its accuracies to the last image."""
    (found,), content = read_runs(folder), metrics_of(folder)
    (choice,) = TRAINING_DOMAIN([found])
    assert content["selection"]["step"] == choice.step
    assert content["held_out"] == [one.dataset.domains[domain] for domain in one.test_domains]
    (record,) = [record for record in found.eligible if record["step"] == choice.step]
    parts = [(domain, name) for domain, splits in content["domains"].items() for name in splits]
    assert sorted(parts) == sorted((one.dataset.domains[domain], name) for domain, name in reported(one))
    for domain, name in reported(one):
        metrics = content["domains"][one.dataset.domains[domain]][name]
        assert metrics["accuracy"]["value"] == pytest.approx(record["accuracy"][name][domain], abs=1e-12)
        assert np.trace(metrics["confusion"]["counts"]) == round(metrics["n"] * record["accuracy"][name][domain])


WAYS = {
    "plain": (trial(ERM()), Engine()),
    "float64": (trial(ERM(), precision="fp64"), Engine()),
    "bfloat16": (trial(ERM(), precision="bf16"), Engine()),
    "streamed images": (trial(ERM()), Engine(images="streamed")),
    "several held-out domains": (trial(ERM(), test_domains=(0, 3)), Engine()),
    "averaged weights": (trial(ERM(), modifiers=(SWAD(),), steps=61), Engine()),
    "adaptation to a batch": (trial(ARM(), training=CNN, **FEW), Engine()),
    "an embedding of the domain": (trial(MTL()), Engine()),
    "adaptation at test time": (trial(ERM(), modifiers=(ITTA(),), training=CNN, **FEW), Engine()),
    "adjusted classifier": (trial(ERM(), modifiers=(T3A(),)), Engine()),
    "entropy minimisation": (trial(ERM(), modifiers=(TENT(),), training=CNN, **FEW), Engine()),
}


@pytest.mark.parametrize("way", WAYS)
def test_metrics_are_those_of_the_selected_step_in_the_records(tmp_path, way):
    one, engine = WAYS[way]
    run(one, tmp_path, RunOptions(engine=engine))
    if len(one.test_domains) == 1:
        assert_accuracies_of_the_records(tmp_path, one)
    else:
        assert sorted(metrics_of(tmp_path)["domains"]) == sorted(one.dataset.domains)


@pytest.mark.parametrize("trials", ["vmap", "apart"])
def test_trials_of_a_batch_have_their_own_metrics(tmp_path, trials):
    several = [trial(ERM(), seed=seed, test_domains=(seed,)) for seed in range(3)]
    folders = [tmp_path / str(seed) for seed in range(3)]
    assert run_batch(several, folders, RunOptions(engine=Engine(trials=trials))) == [None] * 3
    for one, folder in zip(several, folders, strict=True):
        assert_accuracies_of_the_records(folder, one)


def test_metrics_are_those_of_the_loaded_model(tmp_path):
    one = trial(ERM())
    run(one, tmp_path)
    model, content, domains = package.load(tmp_path), metrics_of(tmp_path), one.dataset.load(None, one.data_seed)
    logits, labels = {}, {}
    for domain, name in reported(one):
        chosen = split(len(domains[domain].labels), domain, one.trial_seed)[name == "out"]
        labels[domain, name] = domains[domain].labels[chosen].numpy()
        logits[domain, name] = model(domains[domain].inputs[chosen].float() / 255).numpy()
    outside = [part for part in logits if part[1] == "out"]
    fitted = fit_temperature(*(np.concatenate([values[part] for part in outside]) for values in (logits, labels)))
    assert content["temperature"] == pytest.approx(fitted, rel=1e-3)
    for (domain, name), z in logits.items():
        found = content["domains"][one.dataset.domains[domain]][name]
        expected = classification_metrics(softmax(z), labels[domain, name], model.classes).to_json()
        assert found["confusion"] == expected["confusion"]
        assert found["recall"] == expected["recall"]
        assert found["accuracy"] == expected["accuracy"]
        numbers = ("macro_f1", "auroc", "ece", "nll")
        assert [found[number] for number in numbers] == pytest.approx(
            [expected[number] for number in numbers], rel=1e-3
        )
        scaled = scale_temperature(z, labels[domain, name], fitted)
        assert found["temperature_scaling"]["before"] == pytest.approx(found["ece"])
        assert found["temperature_scaling"]["after"] == pytest.approx(scaled.after, abs=1e-3)


def test_a_run_that_evaluates_validation_images_only_does_not_predict_the_held_out_domain(tmp_path):
    one = trial(ERM(), evaluation="validation")
    run(one, tmp_path)
    content = metrics_of(tmp_path)
    assert content["held_out"] == ["0"]
    assert {name: list(splits) for name, splits in content["domains"].items()} == {
        one.dataset.domains[domain]: ["out"] for domain in one.train_domains
    }


def test_a_run_that_leaves_training_images_out_is_selected_and_reported_like_any_other(tmp_path):
    """The trials differ in this alone, so they have the same weights, selected step and metrics."""
    folders = {}
    for evaluation in ("all", "selection"):
        folders[evaluation] = tmp_path / evaluation / "run"
        run(trial(ERM(), evaluation=evaluation, **FEW), folders[evaluation])
    (whole,), (part,) = (read_runs(tmp_path / evaluation) for evaluation in folders)
    assert len(part.records) == len(whole.records) > 1
    for ours, theirs in zip(part.records, whole.records, strict=True):
        for domain in range(len(part.domains)):
            trained = domain not in part.test_domains
            assert ours["accuracy"]["in"][domain] == (None if trained else theirs["accuracy"]["in"][domain])
            assert ours["accuracy"]["out"][domain] == theirs["accuracy"]["out"][domain]
    chosen = [
        [(one.step, one.accuracy) for rule in (TRAINING_DOMAIN, TEST_DOMAIN) for one in rule([r])]
        for r in (part, whole)
    ]
    assert chosen[0] == chosen[1]
    assert metrics_of(folders["selection"]) == metrics_of(folders["all"])


def test_a_run_of_an_earlier_version_without_a_model_has_no_metrics(tmp_path):
    one, session = trial(ERM()), Session([trial(ERM()).task(None)], Engine())
    write_metrics(tmp_path, one, session)
    assert not any(tmp_path.iterdir())


def test_logits_that_are_not_finite_leave_the_metrics_out(tmp_path):
    one = trial(ERM())
    run(one, tmp_path)
    (tmp_path / "metrics.json").unlink()
    (weights,) = tmp_path.glob("model/*.safetensors")
    content = save({name: leaf * 1e30 for name, leaf in load(weights.read_bytes()).items()})
    weights.write_bytes(content)
    description = json.loads((tmp_path / "model/model.json").read_text())
    description["weights"] |= {"bytes": len(content), "sha256": digest(content)}
    (tmp_path / "model/model.json").write_text(json.dumps(description))
    with pytest.warns(MetricsWarning, match="not finite on 0, 15, 30, 45, 60, 75"):
        write_metrics(tmp_path, one, Session([one.task(None)], Engine()))
    assert not (tmp_path / "metrics.json").exists()


def test_metrics_leave_the_state_of_a_session_as_it_is(tmp_path):
    one = trial(MTL())
    session = Session([one.task(None)], Engine())
    session.step()
    before = {name: leaf.clone() for name, leaf in session.predicting_tensors().items()}
    session.predict(before, [0, 3])
    assert session.network.training
    assert all(torch.equal(leaf, before[name]) for name, leaf in session.predicting_tensors().items())
