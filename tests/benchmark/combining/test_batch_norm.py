"""Soups of networks with batch norm: statistics belong to the averaged weights."""

from dataclasses import replace

import pytest
import torch
from combined_runs import member, train
from torch import nn

from pogm import models
from pogm.benchmark.combining.combine import combine, plan_combinations
from pogm.benchmark.combining.evaluation import NORM_BATCHES, Evaluator
from pogm.benchmark.combining.members import find_groups
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.selected_model import MODEL, read_description, read_weights
from pogm.engine.engine import Engine
from pogm.models.featurizer import Featurizer

NORM = "features.2"


def build(shape):
    width = torch.Size(shape).numel()
    return Featurizer(nn.Sequential(nn.Flatten(), nn.Linear(width, 8), nn.BatchNorm1d(8), nn.ReLU()), 8)


@pytest.fixture(params=[False, True], ids=["live", "frozen"])
def runs(request, tmp_path, monkeypatch):
    """Two runs of a network with batch norm, which is frozen or not."""
    monkeypatch.setitem(models._builders(), "tiny_norm", build)
    trials = [member(number, steps=11) for number in (0, 1)]
    settings = {"network": "tiny_norm", "freeze_bn": request.param}
    trials = [replace(one, training=replace(one.training, **settings)) for one in trials]
    return train(tmp_path, *trials), request.param


def test_statistics_are_those_of_the_averaged_network_unless_they_are_frozen(runs):
    folder, is_frozen = runs
    (planned,) = plan_combinations(find_groups(read_runs(folder)), folder / "out", ["uniform"])
    list(combine([planned], None, Engine()))
    model = planned.folders["uniform"] / MODEL
    soup, members = read_weights(model, read_description(model)), [m.read_weights() for m in planned.group.members]
    mean, variance = soup[f"{NORM}.running_mean"], soup[f"{NORM}.running_var"]
    if is_frozen:
        assert all(torch.equal(one[f"{NORM}.running_mean"], mean) for one in members)
        return
    assert soup[f"{NORM}.num_batches_tracked"] == NORM_BATCHES
    evaluator = Evaluator(planned.group, None, Engine())
    table, (weight, bias) = evaluator.session.config.table, (soup["features.1.weight"], soup["features.1.bias"])
    indices = torch.cat([evaluator.indices[number, "in"] for number in evaluator.trial.train_domains])
    x = evaluator.trial.dataset.transform(evaluator.trial.training).to_inputs(
        table.inputs.inputs[indices], torch.float32
    )
    z = x.flatten(1) @ weight.T + bias
    torch.testing.assert_close(mean, z.mean(0), rtol=0, atol=float(z.std(0).max()) / 20)
    torch.testing.assert_close(variance, z.var(0), rtol=0.1, atol=0)
    averaged = torch.stack([one[f"{NORM}.running_mean"] for one in members]).mean(0)
    assert (mean - z.mean(0)).norm() < 0.5 * (averaged - z.mean(0)).norm()


def test_greedy_soup_of_live_batch_norm_has_the_recorded_validation_accuracy(runs):
    folder, _ = runs
    (planned,) = plan_combinations(find_groups(read_runs(folder)), folder / "out", ["greedy"])
    list(combine([planned], None, Engine()))
    model = planned.folders["greedy"] / MODEL
    description = read_description(model)
    found = Evaluator(planned.group, None, Engine()).validate(read_weights(model, description))
    assert found == description["selection"]["validation"]
    assert found >= max(one["validation"] for one in description["combination"]["members"])
