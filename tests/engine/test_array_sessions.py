"""Test training on inputs that are not images: statistics, batches of trials, resume, and regression."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from sample_files import OPTIONS, write_amazon_reviews, write_heart, write_spoken_digits, write_table
from sklearn.metrics import mean_absolute_error, r2_score, root_mean_squared_error

from pogm._system.errors import UsageError
from pogm.algorithms import all_algorithms
from pogm.benchmark.plan.parsing import build_trial
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.record_file import read_records
from pogm.benchmark.runs.runner import RunOptions, run, run_batch
from pogm.data.datasets.base import Domain
from pogm.engine.session import Engine, Session
from pogm.engine.task import Task


@pytest.fixture(scope="module")
def data(tmp_path_factory) -> Path:
    root = tmp_path_factory.mktemp("data")
    write_heart(root)
    write_spoken_digits(root)
    write_amazon_reviews(root)
    write_table(root / "numbers.csv", regression=True)
    return root


def heart(data: Path, algorithm: str = "ERM", held_out: str = "va", **options) -> Trial:
    return build_trial("HeartDisease", algorithm, [held_out], data=data, steps=21, evaluate_every=10, **options)


def regression(data: Path, algorithm: str = "ERM", held_out: str = "c", **options) -> Trial:
    options = {"steps": 21, "evaluate_every": 10} | options
    return build_trial(f"{data / 'numbers.csv'}:{OPTIONS}", algorithm, [held_out], data=data, **options)


def weights(session: Session) -> dict[str, torch.Tensor]:
    return dict(session.train_state.state.params)


def train(task: Task, steps: int = 5, engine: Engine | None = None) -> Session:
    session = Session([task], engine or Engine())
    for _ in range(steps):
        session.step()
    return session


@pytest.mark.parametrize("make", [heart, regression], ids=["classification", "regression"])
def test_samples_that_are_not_trained_on_change_neither_statistics_nor_weights(data, make):
    """Other values of the held-out domain and of all validation samples give the same bits."""
    task = make(data).task(data)
    session = train(task)
    domains = task.load()
    used = set(session.sample_indices.train.indices.flatten().tolist())
    start, changed = 0, []
    for domain in domains:
        inputs, labels = domain.inputs.clone(), domain.labels.clone()
        for row in range(len(labels)):
            if start + row not in used:
                inputs[row] = 1e3 + row
                labels[row] = labels[row] * 7 if labels.is_floating_point() else 1 - labels[row]
        changed.append(domain._replace(inputs=inputs, labels=labels))
        start += len(labels)
    other = train(replace(task, load=lambda: changed))
    for name, value in session.sample_indices.statistics.items():
        assert value.equal(other.sample_indices.statistics[name]), name
    for name, leaf in weights(session).items():
        assert leaf.equal(weights(other)[name]), name


@pytest.mark.parametrize("make", [heart, regression], ids=["classification", "regression"])
@pytest.mark.parametrize("algorithm", ["ERM", "POGM"])
def test_batched_trials_equal_single_ones(data, make, algorithm):
    """Trials with other held-out domains have other statistics; each keeps its own in a batch."""
    held_out = ("cleveland", "va") if make is heart else ("a", "c")
    tasks = [make(data, algorithm, domain).task(data) for domain in held_out]
    batch = Session(tasks, Engine())
    assert batch.uses_vmap
    single = [Session([task], Engine()) for task in tasks]
    for session in (batch, *single):
        for _ in range(4):
            session.step()
    scores = batch.scores()
    for row, session in enumerate(single):
        for name, value in session.scores()[0].items():
            assert scores[row][name] == pytest.approx(value, rel=1e-3, abs=1e-4, nan_ok=True), name
        for name, leaf in weights(session).items():
            torch.testing.assert_close(weights(batch)[name][row], leaf, rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("name", ["HeartDisease", "SpokenDigits", "AmazonReviews"])
def test_streamed_inputs_equal_resident_ones(data, name):
    settings = {"data": data, "steps": 3, "settings": ["batch_size=8"]}
    task = build_trial(name, "ERM", ["0"], **settings).task(data)
    resident, streamed = (train(task, 3, Engine(images=images)) for images in ("resident", "streamed"))
    for leaf, other in zip(weights(resident).values(), weights(streamed).values(), strict=True):
        assert leaf.equal(other)
    assert resident.accuracies() == streamed.accuracies()


def test_tones_are_learnt_from_speakers_and_recognised_from_another(data):
    trial = build_trial("SpokenDigits", "ERM", ["theo"], data=data, steps=41, settings=["batch_size=16", "lr=3e-3"])
    session = train(trial.task(data), 40)
    assert session.accuracies()[0][2 * 4] > 0.8


def test_scores_of_a_regression_are_those_of_scikit_learn(data):
    trial = regression(data)
    session = train(trial.task(data), 30)
    (scores,) = session.scores()
    predictions = session.predict(session.predicting_tensors(), range(8))
    for segment, (outputs, targets) in enumerate(predictions):
        p, y = outputs.squeeze(-1).double().numpy(), targets.double().numpy()
        assert scores["r2"][segment] == pytest.approx(r2_score(y, p), abs=1e-4)
        assert scores["rmse"][segment] == pytest.approx(root_mean_squared_error(y, p), rel=1e-4)
        assert scores["mae"][segment] == pytest.approx(mean_absolute_error(y, p), rel=1e-4)
    assert scores["r2"][2 * 2] > 0.3, "it has learnt on a domain it never saw"


def test_scale_of_targets_does_not_change_the_scores(data):
    task = regression(data).task(data)
    domains = [Domain(d.inputs, 4096 * d.labels, groups=d.groups) for d in task.load()]
    plain, scaled = train(task), train(replace(task, load=lambda: domains))
    assert scaled.scores()[0]["r2"] == pytest.approx(plain.scores()[0]["r2"], rel=1e-4)
    assert np.array(scaled.scores()[0]["rmse"]) / 4096 == pytest.approx(np.array(plain.scores()[0]["rmse"]), rel=1e-4)


def test_validation_loss_of_a_regression_is_in_standardised_units(data):
    trial = regression(data, modifiers=["SWAD"])
    session = train(trial.task(data), 3)
    loss = session.observe(3)[0]["validation_loss"]
    unit = float(session.sample_indices.statistics["target_scale"])
    rmse = [session.scores()[0]["rmse"][2 * number + 1] for number in trial.train_domains]
    assert loss == pytest.approx(np.mean([(unit * value) ** 2 for value in rmse]), rel=1e-4)


@pytest.mark.parametrize("algorithm", sorted(all_algorithms()))
def test_every_algorithm_trains_a_regression_or_says_why_not(data, algorithm):
    method = all_algorithms()[algorithm]
    task = regression(data, algorithm).task(data)
    if method.needs_classes:
        with pytest.raises(UsageError, match=f"Expected the loss cross_entropy for {algorithm}"):
            Session([task], Engine())
        return
    session = train(task, 2)
    assert not session.diverged()[0]
    assert np.isfinite(session.scores()[0]["rmse"]).all()


def test_run_of_a_regression_resumes_with_the_same_bits(data, tmp_path, monkeypatch):
    trial, options = regression(data, "POGM"), RunOptions(data=data, checkpoint_seconds=0)
    run(trial, tmp_path / "whole", options)

    def stop_after_two(record: dict) -> None:
        if record["step"] == 10:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        run(trial, tmp_path / "cut", options, stop_after_two)
    run(trial, tmp_path / "cut", options)
    whole, cut = (read_records(tmp_path / name / "records.jsonl") for name in ("whole", "cut"))
    for one, other in zip(whole, cut, strict=True):
        assert {name: one[name] for name in ("r2", "rmse", "mae", "metrics")} == {
            name: other[name] for name in ("r2", "rmse", "mae", "metrics")
        }
    models = [next((tmp_path / name / "model").glob("*.safetensors")).read_bytes() for name in ("whole", "cut")]
    assert models[0] == models[1]


def test_batch_of_runs_stores_the_statistics_of_each_trial(data, tmp_path):
    from pogm import load

    trials = [heart(data, held_out=name) for name in ("cleveland", "va")]
    folders = [tmp_path / trial.id for trial in trials]
    assert run_batch(trials, folders, RunOptions(data=data)) == [None, None]
    for trial, folder in zip(trials, folders, strict=True):
        model, session = load(folder), Session([trial.task(data)], Engine())
        for name, value in session.sample_indices.statistics.items():
            torch.testing.assert_close(model.statistics[name], value)
