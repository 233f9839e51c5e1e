"""Several ways to compute the same: domains in a loop or in streams, trials as one or apart, fused or not."""

import dataclasses

import pytest
from support import assert_close, needs_gpu, no_synchronisation, trial
from torch import nn

from pogm import ERM, IRM, MLDG, POGM, Fishr, Mixup
from pogm.benchmark.plan.trial import Trial
from pogm.core import trees
from pogm.core.flat_params import flat_vector
from pogm.engine import evaluator
from pogm.engine.engine import LONG, Engine
from pogm.engine.session import Session
from pogm.models import build_features

STEPS = 4


def convolutional(algorithm, **options) -> Trial:
    known = trial(algorithm).training
    changes = {"network": "small_cnn", "batch_size": 4, **options.pop("training", {})}
    return trial(algorithm, training=dataclasses.replace(known, **changes), **options)


def stepped(trials: list[Trial], engine: Engine, steps: int = STEPS) -> Session:
    session = Session([one.task(None) for one in trials], engine)
    for _ in range(steps):
        session.step()
    return session


def like_trials(**options) -> list[Trial]:
    """Three that differ in all that trials of one session may differ in."""
    return [
        convolutional(POGM(kappa=0.1 + 0.2 * n), training={"lr": 1e-3 * (n + 1)}, seed=n, test_domains=(n,), **options)
        for n in range(3)
    ]


def test_trials_apart_are_each_what_it_is_alone():
    trials = like_trials()
    together = stepped(trials, Engine(trials="apart"))
    assert together.train_state.state.step.tolist() == [STEPS] * 3
    accuracies = together.accuracies()
    for place, one in enumerate(trials):
        alone = stepped([one], Engine())
        assert_close(trees.index(together.train_state, place), alone.train_state, 0.0)
        assert accuracies[place] == alone.accuracies()[0]


def test_trials_apart_agree_with_those_that_are_mapped():
    trials = like_trials(precision="fp64", modifiers=(Mixup(),))
    apart, mapped = (stepped(trials, Engine(trials=way)) for way in ("apart", "vmap"))
    assert_close(apart.train_state.state, mapped.train_state.state, 1e-9)


def test_on_a_cpu_a_large_network_is_not_mapped():
    small, large = nn.Linear(100, 100), nn.Linear(1000, 1000)
    assert [Engine().choose_domain_strategy(network, 64) for network in (small, large)] == ["vmap", "loop"]
    assert [Engine().uses_vmap_for_trials(network) for network in (small, large)] == [True, False]


def test_only_networks_of_linear_layers_are_mapped_of_themselves():
    linear, _ = build_features("mlp", (1, 8, 8), weights="random", freeze_bn=True, dropout=0.0)
    other, _ = build_features("small_cnn", (1, 8, 8), weights="random", freeze_bn=True, dropout=0.0)
    engine = Engine()
    assert engine.uses_vmap_for_trials(linear)
    assert not engine.uses_vmap_for_trials(other)
    assert engine.choose_domain_strategy(linear, 64) == "vmap"
    assert engine.choose_domain_strategy(other, 64) == "loop"
    assert Engine(domains="streams").choose_domain_strategy(other, 10**6) == "streams"


def test_a_short_run_is_not_compiled_unless_asked_to():
    assert Engine(compile="auto").for_steps(LONG - 1).compile == "off"
    assert Engine(compile="auto").for_steps(LONG).compile == "auto"
    assert Engine(compile="on").for_steps(1).compile == "on"
    assert not Engine(compile="auto").compiles(), "on a CPU"


@pytest.mark.parametrize("pixels", [64 * 7, 64 * 1000])
def test_accuracies_do_not_depend_on_how_many_images_a_pass_has(monkeypatch, pixels):
    session = stepped([convolutional(ERM())], Engine())
    expected = session.accuracies()
    monkeypatch.setitem(evaluator.PIXELS, "cpu", pixels)
    assert session.accuracies() == expected


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_domains_in_streams_are_what_they_are_in_a_loop(precision):
    one = convolutional(POGM(inner_steps=2), precision=precision)
    loop, streams = (stepped([one], Engine("cuda", domains=way)) for way in ("loop", "streams"))
    assert_close(streams.train_state, loop.train_state, 0.0)


@pytest.mark.gpu
@needs_gpu
def test_trials_side_by_side_are_each_what_it_is_alone():
    trials = like_trials()
    together = stepped(trials, Engine("cuda", trials="apart"))
    accuracies = together.accuracies()
    for place, one in enumerate(trials):
        alone = stepped([one], Engine("cuda"))
        assert_close(trees.index(together.train_state, place), alone.train_state, 0.0)
        assert accuracies[place] == alone.accuracies()[0]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    "algorithm", [ERM(), POGM(inner_steps=2), IRM(), Fishr(), MLDG()], ids=lambda a: type(a).__name__
)
def test_what_is_fused_differs_by_rounding(algorithm):
    """Warnings are errors here: nothing that is marked fell back to running as it is."""
    one = convolutional(algorithm)
    start = stepped([one], Engine("cuda"), 0).train_state.state.params
    plain, compiled = (stepped([one], Engine("cuda", compile=how)) for how in ("off", "on"))
    ends = [flat_vector(session.train_state.state.params) for session in (plain, compiled)]
    assert (ends[1] - ends[0]).norm() < 0.02 * (ends[0] - flat_vector(start)).norm()
    assert compiled.accuracies()[0] == pytest.approx(plain.accuracies()[0], abs=0.02)


@pytest.mark.gpu
@needs_gpu
def test_the_mnist_network_is_fused_too():
    """Its first convolution is a product of matrices then."""
    one = convolutional(POGM(), training={"network": "mnist_cnn"})
    start = flat_vector(stepped([one], Engine("cuda"), 0).train_state.state.params)
    plain, compiled = (
        flat_vector(stepped([one], Engine("cuda", compile=how)).train_state.state.params) for how in ("off", "on")
    )
    assert (compiled - plain).norm() < 0.02 * (plain - start).norm()


@pytest.mark.gpu
@needs_gpu
def test_a_fused_step_does_not_wait_for_the_gpu():
    session = stepped([convolutional(POGM())], Engine("cuda", compile="on"))
    with no_synchronisation():
        session.step()


@pytest.mark.gpu
@needs_gpu
def test_fused_trials_of_one_process_share_the_code_of_the_first():
    """Learning rates and radii are inputs, not constants: the second trial compiles nothing."""
    from torch._dynamo.utils import counters

    first, second = like_trials()[:2]
    stepped([first], Engine("cuda", compile="on"))
    before = counters["stats"]["unique_graphs"]
    stepped([second], Engine("cuda", compile="on"))
    assert counters["stats"]["unique_graphs"] == before
