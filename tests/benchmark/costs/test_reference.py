"""Costs of a plan from the measurements in the package."""

import itertools
import json
import re
import time
from dataclasses import replace
from pathlib import Path

import pytest

from pogm import CDANN, ERM, MIRO, POGM, SMA
from pogm.algorithms import all_algorithms
from pogm.benchmark.costs.disk_space import checkpoint_bytes, model_bytes
from pogm.benchmark.costs.reference import (
    count_images,
    record_bytes,
    reference_costs,
    reference_lines,
    run_cost,
    size_text,
)
from pogm.benchmark.plan.sweep import Sweep
from pogm.benchmark.runs.runner import run
from pogm.cli import main
from pogm.data.datasets import dataset_class
from pogm.testing import make_trial

RESULTS = Path(__file__).parents[3] / "benchmarks" / "results"


def sweep(*datasets, algorithms=("ERM", "POGM"), **options):
    return Sweep(algorithms, tuple(dataset_class(name)() for name in datasets), **options)


def test_the_figures_are_those_of_the_benchmarks():
    figures = {one["work"]: one for one in json.loads((RESULTS / "speed_h200.json").read_text())["figures"]}
    methods = json.loads((RESULTS / "methods_h200.json").read_text())["networks"]
    large, small = (reference_costs()["networks"][name] for name in ("resnet50", "mnist_cnn"))
    assert large["minibatch_seconds"] == figures["PACS, resnet50, 96 images, ERM"]["measured"] / 1000
    assert large["memory_gib"] == pytest.approx(
        figures["peak memory, resnet50, 96 images, ERM"]["measured"] / 1.073741824
    )
    details = figures["ColoredMNIST trial, ERM, bf16"]["details"]
    assert (small["minibatch_seconds"], small["evaluation_seconds"]) == (details["step"], details["evaluation"])
    assert small["memory_gib"] == methods["mnist_cnn"]["ERM"]["gib"]
    floors = json.loads((RESULTS / "speed_h200.json").read_text())["floors"]
    gradient = [floors[f"gradient of 96 images{kind}"]["ms"] for kind in ("", ", compiled")]
    assert large["uncompiled_ratio"] == pytest.approx(gradient[0] / gradient[1], abs=0.01)
    step = floors["ColoredMNIST, ERM, bf16"]["step"]
    assert small["uncompiled_ratio"] == pytest.approx(step / small["minibatch_seconds"], abs=0.01)


def test_a_run_like_the_measured_one_has_its_cost_and_others_scale_with_images_and_pixels():
    (one,) = (trial for trial, _ in sweep("PACS", algorithms=("ERM",), configurations=1, trials=1).sample())
    cost = run_cost(one)
    assert cost.train_seconds == pytest.approx(one.steps * 0.015123, rel=1e-4)  # 3 domains of 32 images
    assert cost.evaluation_seconds == pytest.approx(1.1 * len(one.schedule.points()))
    part, least = (replace(one, evaluation=name) for name in ("selection", "validation"))
    assert run_cost(part).evaluation_seconds == pytest.approx((0.2 + 0.8 / 4) * cost.evaluation_seconds)
    assert run_cost(least).evaluation_seconds == pytest.approx(0.2 * cost.evaluation_seconds)
    twice = replace(one, training=replace(one.training, batch_size=64))
    smaller = replace(one, training=replace(one.training, image_size=112))
    assert run_cost(twice).train_seconds == pytest.approx(2 * cost.train_seconds)
    assert run_cost(smaller).train_seconds == pytest.approx(cost.train_seconds / 4)
    assert run_cost(smaller).gpu_gib == pytest.approx(cost.gpu_gib / 4)


@pytest.mark.parametrize("algorithm", [ERM(), POGM(), CDANN()])
@pytest.mark.parametrize("network", ["mnist_cnn", "small_cnn"])
def test_the_size_of_a_run_is_that_on_the_disk(tmp_path, algorithm, network):
    one = make_trial(algorithm, dataset="ColoredDigits", steps=2)
    one = replace(one, training=replace(one.training, network=network))
    run(one, tmp_path)  # not as a run of a sweep, which has no checkpoint when it is done
    parts = {part: (tmp_path / part).iterdir() for part in ("checkpoints", "model")}
    found = {part: sum(file.stat().st_size for file in files) for part, files in parts.items()}
    assert found["checkpoints"] == pytest.approx(checkpoint_bytes(one), rel=0.05)
    assert found["model"] == pytest.approx(model_bytes(one), rel=0.05)
    rest = sum(file.stat().st_size for file in tmp_path.iterdir() if file.is_file())
    assert rest == pytest.approx(record_bytes(one), rel=0.5)


def test_the_size_of_every_model_is_that_of_its_network():
    for dataset, modifiers in itertools.product(("ColoredDigits", "HeartDisease"), ((), (MIRO(), SMA()))):
        for kind in all_algorithms():
            one = make_trial(all_algorithms()[kind](), dataset=dataset, steps=2, modifiers=modifiers)
            for trial in (one, replace(one, precision="fp64")):
                network = trial.task(None).build_network()
                found = sum(leaf.nbytes for leaf in (*network.parameters(), *network.buffers()))
                assert model_bytes(trial) == found * (2 if trial.precision == "fp64" else 1), trial.label


def test_a_sample_stands_for_all_trials_of_the_plan():
    full = sweep("PACS", "ColoredMNIST", configurations=2, trials=2, mode="full")
    sampled = full.sample()
    plan = full.plan()
    assert sum(count for _, count in sampled) == len(plan)
    seconds = sum(run_cost(trial).train_seconds for trial in plan)
    assert sum(run_cost(trial).train_seconds * count for trial, count in sampled) == pytest.approx(seconds)


def test_a_plan_of_twenty_thousand_runs_needs_less_than_three_seconds():
    algorithms = ("ERM", "IRM", "GroupDRO", "MLDG", "CORAL", "MMD", "DANN", "VREx", "RSC", "SagNet", "Fish", "POGM")
    large = sweep("RotatedMNIST", "VLCS", "PACS", "OfficeHome", "DomainNet", algorithms=algorithms, configurations=24)
    start = time.process_time()
    lines = reference_lines(large.sample())
    assert time.process_time() - start < 3
    assert len(algorithms) * sum(map(large.count, large.datasets)) > 20_000
    assert lines[0].startswith("Estimate on one NVIDIA H200: about ")


def test_trials_that_share_their_training_need_its_time_once():
    def sample(*algorithms):
        return sweep("PACS", algorithms=algorithms, configurations=20, trials=3).sample()

    def hours(trials):
        return float(re.search(r"about ([\d.]+) GPU hours", reference_lines(trials)[0])[1])

    alone, shared, apart = (hours(sample(*names)) for names in (("ERM",), ("ERM", "ERM + SMA"), ("ERM", "POGM")))
    assert alone < shared < 1.4 * alone, "further evaluations"
    assert apart > 2 * alone
    left = [(one, count * (one.label != "ERM")) for one, count in sample("ERM", "ERM + SMA")]
    assert hours(left) == pytest.approx(alone, rel=0.1), "ERM is done, so SMA has to be trained"


def test_networks_and_methods_without_measurements_are_left_out_and_counted():
    (plan,) = (sweep("PACS", algorithms=("ERM",), configurations=1, trials=1).sample(),)
    other = [(replace(trial, training=replace(trial.training, network="resnet18")), 6) for trial, _ in plan]
    first, disk = reference_lines([*plan, *other])
    assert first.startswith("Estimate for 4 of 10 runs on one NVIDIA H200")
    assert "without models" not in disk
    unfit = [(replace(trial, training=replace(trial.training, network="cnn1d")), 6) for trial, _ in plan]
    assert "without models of 6 runs" in reference_lines([*plan, *unfit])[1]
    assert len(reference_lines(other)) == 1
    assert len(reference_lines(plan, on_gpu=False)) == 1


def test_the_numbers_of_images_are_known_without_data():
    names = ("DomainNet", "RotatedMNIST", "ColoredMNIST", "PACS")
    assert [count_images(dataset_class(name)()) for name in names] == [586575, 70000, 70000, 9991]


@pytest.mark.parametrize(("count", "text"), [(2e12, "2.0 TB"), (3.5e9, "3.5 GB"), (4e6, "4.0 MB"), (500, "0 kB")])
def test_sizes_have_a_suitable_unit(count, text):
    assert size_text(count) == text


def test_dry_run_of_a_sweep_prints_gpu_hours_and_disk(tmp_path, capsys):
    words = ["sweep", "--algorithms", "ERM", "--datasets", "DomainNet", "--out", str(tmp_path / "out"), "--dry-run"]
    assert main(words) == 0
    time_line, disk = capsys.readouterr().out.splitlines()[-2:]
    assert "GPU hours" in time_line
    assert "image cache 115.3 GB" in disk
    assert main([*words, "--device", "cpu"]) == 0
    said = capsys.readouterr().out
    assert "Their time is not known. To measure it with this data, add --estimate." in said
    assert "GPU hours" not in said
    assert not (tmp_path / "out").exists()
