"""A probe does not influence the run, and measures the same with every strategy of the engine."""

import dataclasses
from functools import cache

import pytest
import torch
from support import assert_close, needs_gpu, no_synchronisation, trial

from pogm import CIRL, DANN, ERM, POGM, Fish, Fishr, Mixup
from pogm.core import trees
from pogm.diagnostics import Probe
from pogm.diagnostics.probe import PROBED
from pogm.engine import checkpoint
from pogm.engine.session import Engine, Session
from pogm.engine.trainer import train

EVERYTHING = Probe(every=1, lag=2, target=True, divergence=True)
CYCLIC = Probe(every=2, lag=3, cyclic=True)

METHODS = {
    "ERM": (ERM(), ()),
    "Fish": (Fish(), ()),
    "Fishr": (Fishr(penalty_anneal_iters=3), ()),
    "POGM": (POGM(inner_steps=2), ()),
    "DANN": (DANN(), ()),
    "POGM + Mixup": (POGM(), (Mixup(),)),
    "ERM + CIRL": (ERM(), (CIRL(),)),  # doubles the minibatches and replaces the risk
}
methods = pytest.mark.parametrize(("algorithm", "modifiers"), METHODS.values(), ids=METHODS)
some = pytest.mark.parametrize(("algorithm", "modifiers"), [METHODS[n] for n in ("ERM", "DANN", "POGM + Mixup")])
probes = pytest.mark.parametrize("probe", [EVERYTHING, CYCLIC], ids=["everything", "cyclic"])


def run(algorithm, modifiers=(), probe=EVERYTHING, **options):
    options = {"steps": 9, "evaluate_every": 4} | options
    one = trial(algorithm, modifiers=modifiers, probe=probe, **options)
    return dataclasses.replace(one, training=dataclasses.replace(one.training, batch_size=4))


def outcome(one):
    """Train a trial. Return its final state, its evaluations without the metrics of a probe, and the probed rounds."""
    session = Session([one.task(None)], Engine())
    evaluations = list(train(session, one.schedule))
    metrics = [{n: v for n, v in e.metrics[0].items() if n not in PROBED} for e in evaluations]
    seen = [(e.step, e.accuracies, str(m)) for e, m in zip(evaluations, metrics, strict=True)]
    measured = [number for e in evaluations for number in (e.rounds[0] or {"round": []})["round"]]
    return (session.train_state.state, session.train_state.modifiers), seen, measured


without_probe = cache(outcome)  # the reference of several probes


@methods
@probes
def test_probe_does_not_change_weights_and_accuracies(algorithm, modifiers, probe):
    """Bit-identical: weights, optimizer states, memories and all metrics except those of the probe."""
    (end, seen, _), (probed_end, probed, measured) = (
        without_probe(run(algorithm, modifiers, Probe())),
        outcome(run(algorithm, modifiers, probe)),
    )
    assert_close(probed_end, end, 0.0)
    assert probed == seen
    rounds = 9 // algorithm.minibatches
    assert measured == list(range(probe.every, rounds + 1, probe.every))


def test_cosines_of_a_record_are_means_over_the_measured_rounds():
    """This holds for POGM too, which reports cosines also without a probe."""
    one = run(POGM(), probe=Probe(every=3, lag=3))
    evaluations = list(train(Session([one.task(None)], Engine()), one.schedule))
    assert [e.rounds[0]["round"] for e in evaluations] == [[], [3], [6, 9]]
    assert evaluations[0].metrics[0]["cosine"] == []
    both = torch.tensor(evaluations[2].rounds[0]["cosine"]).mean(0).tolist()
    assert evaluations[2].metrics[0]["cosine"] == pytest.approx(both)
    plain = run(POGM(), probe=Probe())
    (first, *_) = train(Session([plain.task(None)], Engine()), plain.schedule)
    assert first.rounds == [None]
    assert len(first.metrics[0]["cosine"]) == 5, "without a probe, POGM reports its own cosines"


@some
@probes
def test_batched_trials_measure_the_same_as_single_trials(algorithm, modifiers, probe):
    first = run(algorithm, modifiers, probe, precision="fp64")
    trials = [first, dataclasses.replace(first, seed=1, trial_seed=1, test_domains=(3,))]
    batched = Session([t.task(None) for t in trials], Engine())
    single = [Session([t.task(None)], Engine()) for t in trials]
    for session in (batched, *single):
        for number in range(1, 4):
            session.step(probe.measures(number))
    for row, session in enumerate(single):
        assert_close(trees.index(batched.train_state, row), session.train_state, 1e-7)
    for found, session in zip(batched.fetch_rounds(), single, strict=True):
        (expected,) = session.fetch_rounds()
        assert str(found.keys()) == str(expected.keys())
        assert found["round"] == expected["round"]
        for name in found:
            torch.testing.assert_close(
                torch.tensor(found[name]), torch.tensor(expected[name]), rtol=1e-5, atol=1e-7, equal_nan=True
            )


@methods
def test_domains_by_vmap_measure_the_same_as_in_a_loop(algorithm, modifiers):
    one = run(algorithm, modifiers, precision="fp64")
    loop, mapped = (Session([one.task(None)], Engine(domains=domains)) for domains in ("loop", "vmap"))
    for session in (loop, mapped):
        for _ in range(2):
            session.step(probing=True)
    assert_close(loop.train_state, mapped.train_state, 1e-7)


@some
@probes
def test_resume_between_two_evaluations_gives_identical_measurements(algorithm, modifiers, probe, tmp_path):
    one = run(algorithm, modifiers, probe, steps=12, evaluate_every=100)
    uninterrupted, first, second = (Session([one.task(None)], Engine()) for _ in range(3))
    expected = [e.rounds for e in train(uninterrupted, one.schedule)]
    calls = iter([False, False, True])
    *early, stopped = train(first, one.schedule, stop=lambda: next(calls))
    assert stopped is None
    checkpoint.save(tmp_path / "c", first.train_state, trial="t", after=0)
    second.train_state, _ = checkpoint.load(tmp_path / "c", second.train_state, "t")
    late = list(train(second, one.schedule, after=0))
    assert str([e.rounds for e in (*early, *late)]) == str(expected)
    assert_close(second.train_state, uninterrupted.train_state, 0.0)


def test_fetch_returns_every_round_once():
    session = Session([run(ERM()).task(None)], Engine())
    session.step(probing=True)
    assert session.fetch_rounds()[0]["round"] == [1]
    assert session.fetch_rounds()[0]["round"] == []
    session.step(probing=True)
    assert session.fetch_rounds()[0]["round"] == [2]


def test_held_out_minibatches_come_from_the_in_split_of_the_held_out_domain():
    session = Session([run(ERM(), test_domains=(2,), evaluate_every=100).task(None)], Engine())
    inside = session.sample_indices.evaluate.split(session.segments)[2 * 2]
    images = session.config.table.inputs.inputs.flatten(1).float() / 255
    allowed = {tuple(row) for row in images[inside].tolist()}
    state = session.train_state.state
    for number in range(20):
        numbered = state._replace(step=state.step + number)
        (batch,) = session.config.batches(numbered, session.sample_indices, held_out=True)
        assert {tuple(row) for row in batch.x[0].flatten(1).tolist()} <= allowed


@pytest.mark.gpu
@needs_gpu
@methods
@probes
@pytest.mark.parametrize("count", [1, 2])
def test_captured_measurements_on_a_gpu_equal_those_on_a_cpu(algorithm, modifiers, probe, count):
    first = run(algorithm, modifiers, probe, precision="fp64")
    trials = [first, dataclasses.replace(first, seed=1, trial_seed=1, test_domains=(3,))][:count]
    captured = Session([t.task(None) for t in trials], Engine("cuda"))
    plain = [Session([t.task(None)], Engine("cpu")) for t in trials]
    for _ in range(2):  # fetch in between, as an evaluation does
        for session in (captured, *plain):
            for number in range(1, 4):
                session.step(probe.measures(number))
        for found, session in zip(captured.fetch_rounds(), plain, strict=True):
            (expected,) = session.fetch_rounds()
            assert found["round"] == expected["round"]
            for name in found:
                torch.testing.assert_close(
                    torch.tensor(found[name]), torch.tensor(expected[name]), rtol=1e-4, atol=1e-6, equal_nan=True
                )
    for row, session in enumerate(plain):
        one = trees.index(captured.train_state, row) if count > 1 else captured.train_state
        assert_close(trees.map_leaves(torch.Tensor.cpu, one), session.train_state, 1e-6)


@pytest.mark.gpu
@needs_gpu
@methods
@probes
def test_captured_probe_does_not_change_the_weights(algorithm, modifiers, probe):
    """Bit-identical on a GPU, too."""
    sessions = [Session([run(algorithm, modifiers, p).task(None)], Engine("cuda")) for p in (Probe(), probe)]
    for session in sessions:
        for number in range(1, 7):
            session.step(probe.measures(number))
    plain, probed = sessions
    assert_close(plain.train_state.state, probed.train_state.state, 0.0)


@pytest.mark.gpu
@needs_gpu
@methods
@probes
def test_measured_round_does_not_synchronise(algorithm, modifiers, probe):
    session = Session([run(algorithm, modifiers, probe).task(None)], Engine("cuda", capture=False))
    for _ in range(2):
        session.step(probing=True)
    with no_synchronisation():
        session.step(probing=True)
