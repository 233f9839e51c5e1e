"""The training loop and sessions."""

import dataclasses

import pytest
import torch
from support import assert_close, needs_gpu, trial

from pogm import ERM, POGM, Fishr, Mixup
from pogm._system.errors import UsageError
from pogm.core import trees
from pogm.core.model import evaluation_mode
from pogm.diagnostics import Probe
from pogm.engine.session import Engine, Session
from pogm.engine.trainer import Schedule, train
from pogm.engine.vectorise import add_to_totals


def test_schedule_evaluates_after_the_first_minibatch_regularly_and_after_the_last():
    assert Schedule(5001, 300).points() == [*range(0, 4801, 300), 5000]
    assert Schedule(1, 10).points() == [0]
    assert Schedule(11, 5).points() == [0, 5, 10]
    assert Schedule(11, 5).rounds(minibatches=3) == [0, 2, 3], "only complete rounds count"


def test_round_of_several_minibatches_counts_all_of_them():
    """With E = 4, no round is complete after minibatch 0, two are after 10, and five after 20."""
    run = trial(POGM(inner_steps=4), steps=21, evaluate_every=10)
    session = Session([run.task(None)], Engine())
    rounds = [int(session.train_state.state.step) for _ in train(session, run.schedule)]
    assert rounds == [0, 2, 5]


def test_minibatches_do_not_depend_on_the_length_of_rounds():
    """With one domain, four rounds of one minibatch and one round of four minibatches use the same images."""
    single = trial(POGM(kappa=0.0, meta_lr=1.0, inner_steps=1), precision="fp64", test_domains=(0, 1, 2, 3, 4))
    four = dataclasses.replace(single, algorithm=POGM(kappa=0.0, meta_lr=1.0, inner_steps=4))
    erm = dataclasses.replace(single, algorithm=ERM())
    sessions = [Session([t.task(None)], Engine()) for t in (single, four, erm)]
    for session, rounds in zip(sessions, (4, 1, 4), strict=True):
        for _ in range(rounds):
            session.step()
    weights = [session.train_state.state.params for session in sessions]
    assert_close(weights[0], weights[1], 1e-9)
    assert_close(weights[0], weights[2], 1e-9)


def test_evaluation_does_not_change_training():
    often, rarely = (trial(Fishr(penalty_anneal_iters=5), steps=21, evaluate_every=every) for every in (1, 20))
    sessions = [Session([t.task(None)], Engine()) for t in (often, rarely)]
    for session, run in zip(sessions, (often, rarely), strict=True):
        list(train(session, run.schedule))
    assert_close(sessions[0].train_state.state, sessions[1].train_state.state, 0.0)


def test_accuracies_of_every_domain_and_split():
    run = trial(ERM())
    session = Session([run.task(None)], Engine())
    state, config = session.train_state.state, session.config
    logits = config.problem.model(state.params, state)(
        config.table.inputs.inputs[session.sample_indices.evaluate].float() / 255
    )
    right = logits.argmax(1) == config.table.labels[session.sample_indices.evaluate]
    expected = [part.double().mean().item() for part in right.split(session.segments)]
    assert session.accuracies()[0] == pytest.approx(expected, abs=1e-12)
    assert len(expected) == 2 * 6


def test_metrics_are_means_since_the_last_evaluation():
    run = trial(ERM(), steps=3, evaluate_every=1)
    losses = [e.metrics[0]["loss"] for e in train(Session([run.task(None)], Engine()), run.schedule)]
    rare = dataclasses.replace(run, evaluate_every=10)
    first, both = train(Session([rare.task(None)], Engine()), rare.schedule)
    assert first.metrics[0]["loss"] == pytest.approx(losses[0])
    assert both.metrics[0]["loss"] == pytest.approx((losses[1] + losses[2]) / 2)


def test_undefined_values_of_a_metric_are_not_in_its_mean():
    totals: dict = {}
    for value in ([1.0, torch.nan], [2.0, 5.0], [torch.inf, torch.nan]):
        totals = add_to_totals(totals, {"cosine": torch.tensor(value)})
    assert (totals["cosine"]["sum"] / totals["cosine"]["count"]).tolist() == [1.5, 5.0]


def test_weights_that_are_not_finite_are_reported():
    run = trial(ERM(), steps=11, evaluate_every=5)
    run = dataclasses.replace(run, training=dataclasses.replace(run.training, lr=1e30))
    diverged = [e.diverged[0] for e in train(Session([run.task(None)], Engine()), run.schedule)]
    assert diverged[-1]
    assert not any(e.diverged[0] for e in train(Session([trial(ERM()).task(None)], Engine()), run.schedule))


def test_stop_ends_the_loop_between_two_steps():
    run = trial(ERM(), steps=50, evaluate_every=100)
    session = Session([run.task(None)], Engine())
    calls = iter([False, False, True])
    events = list(train(session, run.schedule, stop=lambda: next(calls)))
    assert events[-1] is None
    assert session.train_state.state.step == 3


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"algorithm": POGM(inner_steps=2)}, "POGM.inner_steps"),
        ({"algorithm": ERM()}, "POGM"),
        ({"training": dataclasses.replace(trial(ERM()).training, network="small_cnn")}, "SmallDigits.network"),
        ({"precision": "fp64"}, "precision"),
        ({"probe": Probe(every=5)}, "probe"),
        ({"modifiers": (Mixup(),)}, "Mixup"),
        ({"test_domains": (0, 1)}, "held out"),
    ],
)
def test_trials_that_differ_in_more_than_floats_cannot_be_batched(changes, words):
    first = trial(POGM())
    with pytest.raises(UsageError, match=words):
        Session([t.task(None) for t in (first, dataclasses.replace(first, **changes))], Engine())


def test_trials_with_held_out_domains_of_different_sizes_can_be_batched():
    """RotatedDigits has domains of 300 and of 299 digits."""
    trials = [trial(ERM(), precision="fp64", test_domains=(held_out,)) for held_out in (0, 5)]
    batched = Session([t.task(None) for t in trials], Engine())
    batched.step()
    alone = Session([trials[1].task(None)], Engine())
    alone.step()
    assert_close(
        {n: leaf[1] for n, leaf in batched.train_state.state.params.items()}, alone.train_state.state.params, 1e-9
    )


def test_bf16_trains_on_a_cpu_and_tf32_is_refused():
    run = trial(ERM(), steps=61, evaluate_every=60, precision="bf16", test_domains=(2,))
    *_, last = train(Session([run.task(None)], Engine()), run.schedule)
    assert last.accuracies[0][4] > 0.5
    with pytest.raises(UsageError, match="tf32"):
        Session([dataclasses.replace(run, precision="tf32").task(None)], Engine())


def test_evaluation_mode_restores_the_mode_of_every_layer():
    network = torch.nn.Sequential(torch.nn.BatchNorm1d(2).eval(), torch.nn.Dropout())
    with evaluation_mode(network):
        assert not network[1].training
    assert [layer.training for layer in network] == [False, True]


def test_batched_trials_with_a_modifier_equal_single_trials():
    for algorithm in (ERM(), POGM(), Fishr(penalty_anneal_iters=2)):
        trials = [
            trial(algorithm, modifiers=(Mixup(alpha=a),), precision="fp64", seed=s) for s, a in enumerate((0.2, 1.0))
        ]
        batched = Session([t.task(None) for t in trials], Engine())
        single = [Session([t.task(None)], Engine()) for t in trials]
        for session in (batched, *single):
            for _ in range(5):
                session.step()
        for row, session in enumerate(single):
            params = {name: leaf[row] for name, leaf in batched.train_state.state.params.items()}
            assert_close(params, session.train_state.state.params, 1e-8)


def test_initial_weights_depend_only_on_the_seed():
    torch.manual_seed(123)
    first = trial(ERM(), seed=4).task(None).build_network()
    torch.manual_seed(321)
    state = torch.random.get_rng_state()
    second = trial(ERM(), seed=4).task(None).build_network()
    assert torch.equal(state, torch.random.get_rng_state()), "the generator of the caller is not used"
    assert torch.equal(first.head.weight, second.head.weight)
    assert not torch.equal(first.head.weight, trial(ERM(), seed=5).task(None).build_network().head.weight)


def test_streams_are_refused_on_a_cpu():
    with pytest.raises(UsageError, match="a GPU for domains='streams'; found a CPU"):
        Session([trial(POGM()).task(None)], Engine(domains="streams"))


def test_unknown_domain_strategy_is_refused():
    with pytest.raises(UsageError, match="Did you mean 'vmap'"):
        Engine(domains="vamp")


@pytest.mark.parametrize("device", ["gpu", "meta-physical"])
def test_unknown_device_is_refused(device):
    with pytest.raises(UsageError, match="Expected a device"):
        Engine(device).torch_device()


@pytest.mark.skipif(torch.cuda.is_available(), reason="there is a CUDA device")
def test_missing_gpu_is_reported():
    with pytest.raises(UsageError, match="--device cpu"):
        Engine("cuda").torch_device()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("precision", ["bf16", "tf32"])
def test_lower_precision_gives_a_similar_accuracy(precision):
    accuracies = []
    for kind in ("fp32", precision):
        run = trial(POGM(), steps=151, evaluate_every=150, precision=kind, test_domains=(2,))
        *_, last = train(Session([run.task(None)], Engine("cuda")), run.schedule)
        accuracies.append(last.accuracies[0][4])
    assert abs(accuracies[0] - accuracies[1]) < 0.05


@pytest.mark.gpu
@needs_gpu
def test_captured_step_continues_from_a_restored_state():
    """An earlier state is loaded after the step was captured."""
    run = trial(POGM(), precision="fp64")
    session = Session([run.task(None)], Engine("cuda"))
    for _ in range(3):
        session.step()
    early = trees.map_leaves(torch.clone, session.train_state)
    for _ in range(3):
        session.step()
    late = trees.map_leaves(torch.clone, session.train_state.state)
    session.train_state = early
    for _ in range(3):
        session.step()
    assert_close(session.train_state.state, late, 1e-12)
