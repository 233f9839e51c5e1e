"""Strategies that give the same results: loop, streams or vmap; batched or separate trials; compiled or eager."""

import dataclasses

import pytest
from support import assert_close, needs_gpu, no_synchronisation, trial
from torch import nn

from pogm import ERM, IRM, MLDG, POGM, Fishr, Mixup
from pogm._system.errors import UsageError
from pogm.benchmark.plan.trial import Trial
from pogm.core import trees
from pogm.core.flat_params import flat_vector
from pogm.engine import evaluator
from pogm.engine.engine import Engine
from pogm.engine.session import Session
from pogm.models import build_features

STEPS = 4


def convolutional(algorithm, **options) -> Trial:
    known = trial(algorithm).training
    changes = {"network": "small_cnn", "batch_size": 4, **options.pop("training", {})}
    return trial(algorithm, training=dataclasses.replace(known, **changes), **options)


def train(trials: list[Trial], engine: Engine, steps: int = STEPS) -> Session:
    session = Session([one.task(None) for one in trials], engine)
    for _ in range(steps):
        session.step()
    return session


def similar_trials(**options) -> list[Trial]:
    """Return three trials that differ in everything in which trials of one session may differ."""
    return [
        convolutional(POGM(kappa=0.1 + 0.2 * n), training={"lr": 1e-3 * (n + 1)}, seed=n, test_domains=(n,), **options)
        for n in range(3)
    ]


def test_separate_trials_of_one_session_equal_single_trials():
    trials = similar_trials()
    session = train(trials, Engine(trials="apart"))
    assert session.train_state.state.step.tolist() == [STEPS] * 3
    accuracies = session.accuracies()
    for index, one in enumerate(trials):
        alone = train([one], Engine())
        assert_close(trees.index(session.train_state, index), alone.train_state, 0.0)
        assert accuracies[index] == alone.accuracies()[0]


@pytest.mark.parametrize("network", ["small_cnn", "mlp"])
def test_trials_with_different_minibatch_sizes_equal_single_trials(network):
    """They never use vmap, where all trials have the same shapes."""
    trials = [
        convolutional(POGM(), training={"network": network, "batch_size": size}, seed=n, modifiers=(Mixup(),))
        for n, size in enumerate((4, 7, 5))
    ]
    session = train(trials, Engine())
    assert not session.uses_vmap
    for index, one in enumerate(trials):
        alone = train([one], Engine())
        assert_close(trees.index(session.train_state, index), alone.train_state, 0.0)
        assert session.accuracies()[index] == alone.accuracies()[0]


@pytest.mark.parametrize("options", [{"trials": "vmap"}, {"deterministic": True}])
def test_other_sessions_have_one_minibatch_size(options):
    tasks = [convolutional(ERM(), training={"batch_size": size}).task(None) for size in (4, 7)]
    with pytest.raises(UsageError, match=r"different values of SmallDigits\.batch_size"):
        Session(tasks, Engine(**options))


def test_trials_with_fewer_samples_share_a_session_only_with_the_same_held_out_domains():
    """The sizes of their splits depend on the held-out domains, which keep all samples."""
    trials = [convolutional(ERM(), samples=20, seed=n, test_domains=(n // 2,)) for n in range(3)]
    train(trials[:2], Engine(trials="apart"), steps=1).accuracies()
    with pytest.raises(UsageError, match="different values of samples"):
        Session([one.task(None) for one in trials], Engine())


def test_deterministic_runs_are_compiled_for_their_own_minibatch_size():
    with pytest.raises(UsageError, match="found 'dynamic'"):
        Engine(compile="dynamic", deterministic=True)


def test_separate_trials_agree_with_trials_by_vmap():
    trials = similar_trials(precision="fp64", modifiers=(Mixup(),))
    separate, mapped = (train(trials, Engine(trials=strategy)) for strategy in ("apart", "vmap"))
    assert_close(separate.train_state.state, mapped.train_state.state, 1e-9)


def test_large_networks_do_not_use_vmap_on_a_cpu():
    small, large = nn.Linear(100, 100), nn.Linear(1000, 1000)
    assert [Engine().choose_domain_strategy(network, 64) for network in (small, large)] == ["vmap", "loop"]
    assert [Engine().uses_vmap_for_trials(network) for network in (small, large)] == [True, False]


def test_auto_uses_vmap_only_for_networks_of_linear_layers():
    linear, _ = build_features("mlp", (1, 8, 8), weights="random", freeze_bn=True, dropout=0.0)
    other, _ = build_features("small_cnn", (1, 8, 8), weights="random", freeze_bn=True, dropout=0.0)
    engine = Engine()
    assert engine.uses_vmap_for_trials(linear)
    assert not engine.uses_vmap_for_trials(other)
    assert engine.choose_domain_strategy(linear, 64) == "vmap"
    assert engine.choose_domain_strategy(other, 64) == "loop"
    assert Engine(domains="vmap").choose_domain_strategy(other, 10**6) == "vmap"


@pytest.mark.parametrize("pixels", [64 * 7, 64 * 1000])
def test_accuracies_do_not_depend_on_the_size_of_a_pass(monkeypatch, pixels):
    session = train([convolutional(ERM())], Engine())
    expected = session.accuracies()
    monkeypatch.setitem(evaluator.PIXELS, "cpu", pixels)
    assert session.accuracies() == expected


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("precision", ["fp32", "bf16"])
def test_domains_in_streams_equal_domains_in_a_loop(precision):
    one = convolutional(POGM(inner_steps=2), precision=precision)
    loop, streams = (train([one], Engine("cuda", domains=strategy)) for strategy in ("loop", "streams"))
    assert_close(streams.train_state, loop.train_state, 0.0)


@pytest.mark.gpu
@needs_gpu
def test_trials_on_parallel_streams_equal_single_trials():
    trials = similar_trials()
    session = train(trials, Engine("cuda", trials="apart"))
    accuracies = session.accuracies()
    for index, one in enumerate(trials):
        alone = train([one], Engine("cuda"))
        assert_close(trees.index(session.train_state, index), alone.train_state, 0.0)
        assert accuracies[index] == alone.accuracies()[0]


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize(
    "algorithm", [ERM(), POGM(inner_steps=2), IRM(), Fishr(), MLDG()], ids=lambda a: type(a).__name__
)
def test_compiled_step_differs_only_by_rounding(algorithm):
    """Warnings are errors in tests, so every marked function was compiled."""
    one = convolutional(algorithm)
    start = train([one], Engine("cuda"), 0).train_state.state.params
    plain, compiled = (train([one], Engine("cuda", compile=mode)) for mode in ("off", "on"))
    ends = [flat_vector(session.train_state.state.params) for session in (plain, compiled)]
    assert (ends[1] - ends[0]).norm() < 0.02 * (ends[0] - flat_vector(start)).norm()
    assert compiled.accuracies()[0] == pytest.approx(plain.accuracies()[0], abs=0.02)


@pytest.mark.gpu
@needs_gpu
def test_mnist_network_can_be_compiled():
    """Its first convolution then is a matrix product."""
    one = convolutional(POGM(), training={"network": "mnist_cnn"})
    start = flat_vector(train([one], Engine("cuda"), 0).train_state.state.params)
    plain, compiled = (
        flat_vector(train([one], Engine("cuda", compile=mode)).train_state.state.params) for mode in ("off", "on")
    )
    assert (compiled - plain).norm() < 0.02 * (plain - start).norm()


@pytest.mark.gpu
@needs_gpu
def test_compiled_trials_of_one_session_equal_single_trials_up_to_rounding():
    """The weights of one trial are no multiple of 16 bytes, so those of the next trial are not aligned."""
    trials = [
        convolutional(ERM(), training={"network": "mnist_cnn", "lr": 1e-3 * (n + 1)}, seed=n, precision="bf16")
        for n in range(3)
    ]
    session = train(trials, Engine("cuda", trials="apart", compile="on"))
    together = flat_vector(session.train_state.state.params)
    assert together.stride(0) * together.element_size() % 16
    for index, one in enumerate(trials):
        start = flat_vector(train([one], Engine("cuda"), 0).train_state.state.params)
        alone = train([one], Engine("cuda", compile="on"))
        end = flat_vector(alone.train_state.state.params)
        assert (together[index] - end).norm() < 0.02 * (end - start).norm()
        assert session.accuracies()[index] == pytest.approx(alone.accuracies()[0], abs=0.05)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("algorithm", [ERM(), POGM(), Fishr()], ids=lambda a: type(a).__name__)
@pytest.mark.parametrize("network", ["mnist_cnn", "small_cnn"])
def test_dynamic_code_serves_all_minibatch_sizes(algorithm, network):
    """Warnings are errors in tests, so every marked function was compiled; the last sizes compile nothing."""
    from torch._dynamo.utils import counters

    trials = [convolutional(algorithm, training={"network": network, "batch_size": size}) for size in (4, 7, 12, 9)]
    dynamic = train(trials[:2], Engine("cuda", compile="dynamic"))
    before = counters["stats"]["unique_graphs"]
    train(trials[2:], Engine("cuda", compile="dynamic"))
    assert counters["stats"]["unique_graphs"] == before
    for index, one in enumerate(trials[:2]):
        start = flat_vector(train([one], Engine("cuda"), 0).train_state.state.params)
        plain = flat_vector(train([one], Engine("cuda")).train_state.state.params)
        end = flat_vector(trees.index(dynamic.train_state.state.params, index))
        assert (end - plain).norm() < 0.02 * (plain - start).norm()


@pytest.mark.gpu
@needs_gpu
def test_compiled_step_does_not_synchronise():
    session = train([convolutional(POGM())], Engine("cuda", compile="on"))
    with no_synchronisation():
        session.step()


@pytest.mark.gpu
@needs_gpu
def test_compiled_code_is_reused_for_the_next_trial():
    """Learning rates and radii are inputs, not constants, so the second trial compiles nothing."""
    from torch._dynamo.utils import counters

    first, second = similar_trials()[:2]
    train([first], Engine("cuda", compile="on"))
    before = counters["stats"]["unique_graphs"]
    train([second], Engine("cuda", compile="on"))
    assert counters["stats"]["unique_graphs"] == before
