"""The benchmarks of speed with tiny sizes: handwritten loops equal ours, and results are reported."""

import copy
import json
import math
import os
import sys
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from support import needs_gpu

sys.path.append(str(Path(__file__).parents[1] / "benchmarks"))

import bare
import clock
import growth
import learner
import noise
import precision
import speed
from rows import figure, meta, mnist, pacs
from rows.run import SMALL, Run, Size, algorithm, command, engine_options

from pogm._system.errors import UsageError
from pogm.algorithms.pogm import POGM
from pogm.engine.engine import Engine
from pogm.engine.session import Session
from pogm.engine.trainer import Schedule

PAGE = Path(__file__).parents[1] / "docs" / "speed.md"
CPU = torch.device("cpu")
SHAPES = {"mlp": (2, 8, 8), "mnist_cnn": (2, 8, 8), "resnet18": (3, 32, 32)}


@pytest.fixture(autouse=True)
def own_environment(monkeypatch):
    """Restore the environment variables of torch's compiler, which benchmarks set."""
    monkeypatch.setenv("TORCHINDUCTOR_CACHE_DIR", "")
    monkeypatch.setenv("TRITON_CACHE_DIR", "")


def run(size: Size) -> Run:
    return Run("cpu", size, {}, ["fp32"], cache=Path("unused"))


def by_hand(session: Session, network: str, method: str) -> tuple[torch.nn.Module, bare.Method]:
    """Return a handwritten network with the session's weights, and a handwritten method for it."""
    task = session.tasks[0]
    made = bare.network(network, task.dataset.input_shape, task.dataset.num_classes)
    made = made.to(memory_format=torch.channels_last)
    with torch.no_grad():
        for theirs, ours in zip(made.parameters(), session.train_state.state.params.values(), strict=True):
            theirs.copy_(ours)
    lr = task.training.lr
    return made, bare.Erm(made, lr) if method == "ERM" else bare.Pogm(made, task.num_domains, lr)


@pytest.mark.parametrize("network", SHAPES)
@pytest.mark.parametrize("method", ["ERM", "POGM"])
def test_handwritten_loop_equals_ours(network, method):
    session = Session(
        [noise.task(algorithm(method, inner_steps=2), shape=SHAPES[network], network=network, batch_size=4)], Engine()
    )
    made, theirs = by_hand(session, network, method)
    start = copy.deepcopy(made.state_dict())
    for _ in range(2):
        batches = session.config.batches(session.train_state.state, session.sample_indices)
        theirs.step([(batch.x, batch.y) for batch in batches])
        session.step()
    ours = session.train_state.state.params.values()
    moved = sum((a - start[name]).norm() for name, a in made.named_parameters())
    distance = sum((a - b).norm() for a, b in zip(made.parameters(), ours, strict=True))
    assert distance < 0.01 * moved  # a first step of Adam is a sign, which rounding can flip


def test_handwritten_sampling_returns_the_label_of_each_image():
    data = bare.Data(2, 50, (1, 2, 2), 10, CPU)
    x, y = data.draw(64)
    assert x.shape == (2, 64, 1, 2, 2)
    assert y.shape == (2, 64)
    for domain in range(2):
        known = {tuple(image.flatten().tolist()): label for image, label in zip(*_of(data, domain), strict=True)}
        for image, label in zip((255 * x[domain]).round().byte(), y[domain].tolist(), strict=True):
            assert known[tuple(image.flatten().tolist())] == label


def _of(data: bare.Data, domain: int) -> tuple[torch.Tensor, list[int]]:
    return data.images[domain], data.labels[domain].tolist()


def test_handwritten_evaluation_counts_every_image_once():
    data = bare.Data(3, 20, (1, 4, 4), 1, CPU)  # one class: all are right
    network = bare.network("mlp", (1, 4, 4), 1)
    assert bare.evaluation(network, data, 7, None)() == 60


def test_meta_update_alone_equals_the_update_of_a_round():
    task = noise.task(POGM(), network="mlp", shape=(1, 4, 4), batch_size=4)
    whole, alone = Session([task], Engine()), meta.meta_update(task, Engine())
    whole.step()
    alone.step()
    for name, weight in whole.train_state.state.params.items():
        torch.testing.assert_close(alone.train_state.state.params[name], weight)


def test_time_of_a_trial_is_the_sum_of_its_parts_and_is_extrapolated():
    task = noise.task(POGM(), network="mlp", shape=(1, 4, 4), batch_size=4)
    whole = mnist.trial_seconds([task], Engine(), Schedule(21, 10), protocol=21)
    assert whole["evaluations"] == 3
    assert whole["seconds"] > whole["first_calls"] + 20 * whole["step"]
    less = mnist.trial_seconds([task], Engine(), Schedule(11, 10), protocol=1001)
    assert less["evaluations"] == 2
    assert less["seconds"] > 1000 * less["step"] + 100 * less["evaluation"]


def test_memory_is_the_peak_of_tensors():
    with clock.Memory(CPU) as memory:
        for _ in range(3):
            first = torch.zeros(10**6)
            del first
        second = torch.zeros(10**6)
    assert 4e6 <= memory.peak < 4.1e6
    assert len(second) == 10**6


def test_dying_process_raises_an_error():
    with pytest.raises(Exception, match="terminated abruptly"):
        clock.run_in_process(os._exit, 1)


def test_failed_measurement_has_a_reason_and_others_continue(monkeypatch):
    def rows(run):
        yield "broken", lambda: figure.Figure("", measured=1 / 0)
        yield "whole", lambda: figure.Figure("", "ms", 2.0, target=3.0)

    monkeypatch.setitem(speed.ROWS, "cpu", rows)
    broken, whole = speed.measure(run(Size()), ["cpu"], lambda figure: None)
    assert broken.failed == "ZeroDivisionError: division by zero"
    assert broken.reached is None
    assert whole.reached
    assert figure.cells(whole)[1:] == ("2 ms", "–", "–", "≤ 3 ms", "yes")


def test_targets_for_a_gpu_do_not_apply_to_a_cpu_or_to_tiny_sizes():
    assert run(Size()).comparable("cpu")
    assert not run(Size()).comparable("mnist")
    assert not run(SMALL).comparable("cpu")


def test_an_unknown_option_of_the_engine_is_refused():
    assert engine_options(["domains=vmap", "capture=false"]) == {"domains": "vmap", "capture": False}
    with pytest.raises(UsageError, match="found 'wings=2'"):
        engine_options(["wings=2"])


def test_command_has_no_absolute_paths():
    assert command("speed.py", ["--out", "/home/me/x.json"]) == "python benchmarks/speed.py --out x.json"


def test_benchmarks_run_and_write_one_page(tmp_path, capsys, monkeypatch):
    fast, grown, page, rounded = (tmp_path / name for name in ("speed.json", "growth.json", "page.md", "bf16.json"))
    speed.main(["--small", "--rows", "cpu", "--out", str(fast)])
    growth.main(["--small", "--sweeps", "weights", "images", "--out", str(grown)])
    said = capsys.readouterr().out
    assert "meta-update ~ P^" in said
    figures = json.loads(fast.read_text())["figures"]
    assert [figure["failed"] for figure in figures] == ["", ""]
    options = "--dataset RotatedDigits --device cpu --compile off --steps 2 --seeds 2 --algorithms ERM"
    monkeypatch.setattr("sys.argv", ["precision.py", *options.split(), "--precisions", "fp32", "--out", str(rounded)])
    precision.main()
    speed.main(["--page", str(page), str(fast), str(grown), str(rounded)])
    text = page.read_text()
    assert "| ERM | fp32 |" in text
    assert str(tmp_path) not in text
    assert text.count("| CPU, POGM, mlp, 2 × 16 images of 2×28×28 |") == 1
    assert "![an evaluation against images N](images/growth_images_cpu.svg)" in text
    growth.main(["--plot", str(tmp_path), str(grown)])
    assert sorted(path.name for path in tmp_path.glob("*.svg")) == ["growth_images_cpu.svg", "growth_weights_cpu.svg"]


def test_tables_of_the_page_are_those_of_the_stored_results(tmp_path):
    copy = tmp_path / "speed.md"
    copy.write_text(PAGE.read_text().replace("| ERM |", "| changed |"))
    speed.main(["--page", str(copy)])
    assert copy.read_text() == PAGE.read_text()


def test_pacs_is_measured_with_its_augmentation():
    size = replace(SMALL, network="small_cnn", photographs_batch=1, inner_steps=1)
    found = pacs.measure_pacs("POGM", Engine(), size, "fp32")
    assert found["ms"] > 0
    assert 0 < found["images_gb"] < found["gb"]
    assert pacs.photographs(POGM(), size, "fp32").transform.augment


@pytest.mark.parametrize("power", [0.0, 1.0, 2.0])
def test_exponent_does_not_depend_on_the_unit(power):
    points = [{"x": x, "seconds": 7e-3 * x**power} for x in (2.0, 4.0, 8.0, 16.0)]
    assert growth.exponent(points) == pytest.approx(power, abs=1e-12)
    assert math.isnan(growth.exponent(points[:1]))


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("method", ["ERM", "POGM"])
def test_captured_handwritten_step_continues_training(method):
    device = torch.device("cuda")
    network = bare.network("mnist_cnn", (2, 28, 28), 2).to(device)
    made = bare.Erm(network) if method == "ERM" else bare.Pogm(network, 2)
    step = clock.capture(bare.loop(made, bare.Data(2, 100, (2, 28, 28), 2, device), 8), device)
    seen = []
    for _ in range(3):
        step()
        seen.append(bare.flat(network.parameters()).detach())
    assert all(weights.isfinite().all() for weights in seen)
    assert not torch.equal(seen[0], seen[1])
    assert not torch.equal(seen[1], seen[2])


def test_learner_is_measured_beside_a_handwritten_loop_and_a_session():
    found = learner.rows("cpu", repeats=1, lasting=0.001)
    for name in ("`pogm run` / handwritten", "Learner / handwritten"):
        _, method, ratio, measured, reference, _ = next(found).split("|")
        assert (method.strip(), ratio.strip()) == ("ERM", name)
        assert float(measured.split()[0]) > 0
        assert float(reference.split()[0]) > 0
