"""SWAD: averaged weights for given and random sequences of losses, and in whole runs."""

import dataclasses
import json
import math
import signal

import pytest
import torch
from hypothesis import example, given, settings
from hypothesis import strategies as st
from processes import pogm, records, weights
from support import assert_close, needs_gpu, no_synchronisation, toy, trial
from torch.func import vmap

from pogm import ERM, POGM, Fish, Learner, Mixup
from pogm._system.errors import UsageError
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.selection import SELECTIONS, oracle_early_stop
from pogm.benchmark.runs.runner import RunOptions, run, run_batch
from pogm.core import trees
from pogm.engine import checkpoint
from pogm.engine.session import Engine, Session
from pogm.engine.trainer import final, train
from pogm.modifiers import all_modifiers
from pogm.modifiers.base import Modifier
from pogm.modifiers.swad import SWAD

# The procedure in plain Python: segments are lists of weights (here, numbers).


def stretch(losses, swad):
    """Return the indices of the first and last segment, whether training continued after it, and the limit."""
    first = limit = None
    for i in range(len(losses)):
        if first is None:
            window = losses[i - swad.converge + 1 : i + 1] if i >= swad.converge - 1 else []
            if window and window[0] == min(window):
                first, limit = i - swad.converge + 1, (1 + swad.tolerance) * sum(window) / len(window)
        elif i - swad.tolerate >= first and min(losses[i - swad.tolerate + 1 : i + 1]) > limit:
            return first, i - swad.tolerate, True, limit
    return (len(losses) - 1 if first is None else first), len(losses) - 1, False, limit


def expected(segments, losses, swad):
    first, last, _, _ = stretch(losses, swad)
    chosen = [weight for segment in segments[first : last + 1] for weight in segment]
    return sum(chosen) / len(chosen), last


def expected_of_release(segments, losses, swad):
    """Average as the specification describes the released code, with a queue and a running sum."""
    means = [sum(segment) / len(segment) for segment in segments]
    first, limit, mean, count, newest, queue = None, None, 0.0, 0, 0, []

    def add(number):
        nonlocal mean, count, newest
        mean, count, newest = (mean * count + means[number]) / (count + 1), count + 1, max(newest, number)

    for i in range(len(losses)):
        queue = [*queue, i][-swad.tolerate :]
        lowest = min(losses[j] for j in queue)
        if first is None:
            window = losses[i - swad.converge + 1 : i + 1] if i >= swad.converge - 1 else []
            if not window or window[0] > min(window):
                continue
            first, limit = i - swad.converge + 1, (1 + swad.tolerance) * sum(window) / len(window)
            mean, newest = means[first], first
            if swad.tolerate > swad.converge:
                flat = []
                for j in reversed(queue[: swad.tolerate - swad.converge + 1]):
                    if losses[j] > limit:
                        break
                    flat.insert(0, j)
                for j in flat[1:]:
                    add(j)
            for j in range(swad.converge - swad.tolerate):
                add(first + 1 + j)
        elif queue[0] >= first:
            if lowest > limit:
                return mean, newest
            add(queue[0])
    if first is None:
        return means[-1], len(means) - 1
    queue = queue[1:]
    while queue and min(losses[j] for j in queue) <= limit:
        add(queue.pop(0))
    return mean, newest


def observed(swad, segments, losses):
    """Return the result of SWAD for weights and losses; segment i ends at step 10 i."""
    state, problem = toy(ERM())
    state = state._replace(params={"w": torch.zeros(2, dtype=torch.float64)})
    memory = swad.start(state, problem)
    for number, (segment, loss) in enumerate(zip(segments, losses, strict=True)):
        for weight in segment:
            here = state._replace(params={"w": torch.tensor([weight, -weight], dtype=torch.float64)})
            memory, after = swad.after(memory, here, [], problem)
            assert after is here
        memory = swad.observe(memory, torch.tensor(loss, dtype=torch.float64), 10 * number)
    return memory


def averaged(swad, segments, losses):
    memory = observed(swad, segments, losses)
    params, step = swad.final(memory, {"w": torch.zeros(2, dtype=torch.float64)})
    assert params["w"][0] == -params["w"][1]
    return params["w"][0].item(), int(step) // 10


def numbered(losses, lengths=(1, 3, 2)):
    """Return segments of several lengths; their weights are chosen so that a mean identifies its segments."""
    return [[math.sin(7 * i + j) + i for j in range(lengths[i % len(lengths)])] for i in range(len(losses))]


FALLING = [5.0, 4.0, 3.0, 2.0, 1.0]
FLAT = [3.0, 1.0, 1.1, 1.2, 1.1, 1.0]


def test_averaging_starts_and_ends_at_the_defined_segments():
    swad = SWAD(converge=3, tolerate=2)
    losses = [3.0, 1.0, 1.1, 1.2, 1.1, 9.0, 9.0, 1.0]  # limit 1.3 · 1.1; 9, 9 ends it; what follows does not count
    assert stretch(losses, swad)[:3] == (1, 4, True)
    segments = numbered(losses)
    mean, last = averaged(swad, segments, losses)
    assert last == 4
    assert mean == pytest.approx(sum(sum(s) for s in segments[1:5]) / sum(len(s) for s in segments[1:5]), rel=1e-14)


def test_single_high_loss_does_not_end_averaging():
    swad = SWAD(converge=3, tolerate=2)
    assert averaged(swad, numbered([*FLAT, 9.0, 1.0]), [*FLAT, 9.0, 1.0])[1] == 7


def test_limit_is_the_mean_of_the_first_losses_times_one_plus_tolerance():
    memory = observed(SWAD(tolerance=0.5), numbered(FLAT), FLAT)
    assert memory["first"] == 1
    assert memory["limit"].item() == pytest.approx(1.5 * (1.0 + 1.1 + 1.2) / 3)


def test_decreasing_loss_averages_the_last_segment_only():
    segments = numbered(FALLING)
    assert averaged(SWAD(), segments, FALLING) == (pytest.approx(sum(segments[-1]) / len(segments[-1])), 4)


def test_run_without_evaluation_returns_its_last_weights():
    state, problem = toy(ERM())
    params, _ = SWAD().final(SWAD().start(state, problem), state.params)
    assert_close(params, state.params, 0.0)


def test_evaluation_without_a_step_makes_no_segment():
    segments = numbered(FLAT)
    doubled = [part for segment in segments for part in ([], segment)]
    found, plain = (
        observed(SWAD(), parts, losses)
        for parts, losses in ((doubled, [loss for one in FLAT for loss in (99.0, one)]), (segments, FLAT))
    )
    assert_close([found[n] for n in ("last", "first", "limit")], [plain[n] for n in ("last", "first", "limit")], 0.0)
    assert_close(found["recent"]["weights"], plain["recent"]["weights"], 0.0)


def test_segments_are_weighted_by_length_except_in_compat():
    segments, losses = [[1.0] * 9, [2.0]], [1.0, 1.0]
    assert averaged(SWAD(converge=1, tolerate=3), segments, losses)[0] == pytest.approx(11 / 10)
    # As released: the start segment, then both again when training ends, less the oldest of the queue.
    assert averaged(SWAD(converge=1, tolerate=3, compat=True), segments, losses)[0] == pytest.approx(1.5)


LOSSES = st.lists(st.sampled_from([0.0, 0.5, 1.0, 1.1, 1.2, 1.3, 1.5, 2.0, 3.0]), min_size=1, max_size=25)
OPTIONS = st.builds(
    SWAD, converge=st.integers(1, 6), tolerate=st.integers(1, 7), tolerance=st.sampled_from([0.0, 0.1, 0.3, 1.0])
)


@settings(max_examples=120, deadline=None)
@given(LOSSES, OPTIONS)
@example([3.0, 1.0, 1.1, 1.2, 1.1, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 1.0], SWAD())
@example([1.0] * 12, SWAD(converge=7, tolerate=7, tolerance=0.0))
def test_average_equals_a_plain_python_implementation(losses, swad):
    segments = numbered(losses)
    mean, last = expected(segments, losses, swad)
    assert averaged(swad, segments, losses) == (pytest.approx(mean, rel=1e-12), last)


@settings(max_examples=120, deadline=None)
@given(LOSSES, OPTIONS)
@example([3.0, 2.0, 1.2, 1.1, 1.2, 1.3, 1.1, 9.0, 9.0, 9.0, 9.0, 9.0, 9.0, 1.0], SWAD())
@example([1.0, 1.1, 1.2], SWAD(converge=3, tolerate=3, tolerance=0.0))
def test_compat_average_equals_the_released_procedure(losses, swad):
    segments = numbered(losses)
    mean, last = expected_of_release(segments, losses, swad)
    assert averaged(dataclasses.replace(swad, compat=True), segments, losses) == (pytest.approx(mean, rel=1e-12), last)


def test_compat_counts_the_start_twice_and_a_segment_before_it():
    losses = [5.0, 1.25, 1.2] + [1.1] * 7 + [9.0] * 6  # s = 3, e = 9
    weights = [math.sin(i) for i in range(len(losses))]
    segments = [[weight] for weight in weights]
    assert averaged(SWAD(), segments, losses) == (pytest.approx(sum(weights[3:10]) / 7), 9)
    twice = averaged(SWAD(compat=True), segments, losses)
    assert twice == (pytest.approx((weights[2] + weights[3] + sum(weights[3:10])) / 9), 9)


@pytest.mark.parametrize("compat", [False, True])
def test_vmap_over_trials_equals_single_trials(compat):
    sequences = [FLAT + [9.0] * 6, FALLING + [2.0] * 7, [1.0] * 12]
    tolerances = torch.tensor([0.3, 0.1, 0.0], dtype=torch.float64)
    alone = [
        observed(SWAD(tolerance=float(t), compat=compat), numbered(s), s)
        for s, t in zip(sequences, tolerances, strict=True)
    ]
    swad = SWAD(compat=compat)
    state, problem = toy(ERM())
    state = state._replace(params={"w": torch.zeros(2, dtype=torch.float64)})
    memory = trees.repeat(swad.start(state, problem), 3)

    def look(memory, loss, tolerance, step):
        mine = SWAD(compat=compat)
        object.__setattr__(mine, "tolerance", tolerance)
        return mine.observe(memory, loss, step)

    for number, segment in enumerate(numbered(sequences[0])):
        for weight in segment:
            here = state._replace(params={"w": torch.tensor([weight, -weight], dtype=torch.float64)})
            memory = vmap(lambda m, here=here: swad.after(m, here, [], problem)[0])(memory)
        losses = torch.tensor([s[number] for s in sequences], dtype=torch.float64)
        memory = vmap(lambda m, l, t, n=number: look(m, l, t, 10 * n))(memory, losses, tolerances)
    last = {"w": torch.zeros(3, 2, dtype=torch.float64)}
    params, steps = vmap(swad.final)(memory, last)
    for row, one in enumerate(alone):
        assert_close(trees.index(memory, row), one, 1e-12)
        assert_close(
            (params["w"][row], steps[row]),
            (swad.final(one, trees.index(last, row))[0]["w"], swad.final(one, last)[1]),
            1e-12,
        )


# In sessions.

QUICK = SWAD(converge=2, tolerate=1, tolerance=0.02)


def short(algorithm, *modifiers, **options):
    """Return a run with frequent evaluations, with a loss that increases and decreases."""
    defaults = {"precision": "fp64", "steps": 31, "evaluate_every": 2, "modifiers": (QUICK, *modifiers)}
    one = trial(algorithm, **defaults | options)
    return dataclasses.replace(one, training=dataclasses.replace(one.training, lr=0.05))


def plain_loss(session, one):
    """Return the mean over training domains of the validation cross-entropy, computed in a loop."""
    state, config = session.train_state.state, session.config
    model = config.problem.model(state.params, state)
    parts = session.sample_indices.evaluate.split(session.segments)[1::2]
    losses = []
    for number in one.train_domains:
        images, labels = config.table.inputs.inputs[parts[number]], config.table.labels[parts[number]]
        losses.append(
            torch.nn.functional.cross_entropy(model(config.transform.to_inputs(images, config.dtype)), labels)
        )
    return torch.stack(losses).mean().item()


@pytest.mark.parametrize(
    ("algorithm", "others"), [(ERM(), ()), (POGM(), ()), (POGM(inner_steps=3), (Mixup(),)), (Fish(), (Mixup(),))]
)
def test_run_ends_with_the_mean_of_its_weights(algorithm, others):
    """The mean is computed again from all weights of the run, for several algorithms and modifiers."""
    one = short(algorithm, *others, test_domains=(2,))
    session = Session([one.task(None)], Engine())
    segments, points, losses, here = [], [], [], []
    step = session.step

    def kept(probing=False):
        step(probing)
        here.append(session.train_state.state.params)

    session.step = kept
    for evaluation in train(session, one.schedule):
        loss = evaluation.metrics[0]["validation_loss"]
        assert loss == pytest.approx(plain_loss(session, one), rel=1e-9)
        if here:
            segments.append(list(here))
            points.append(evaluation.step)
            losses.append(loss)
            here.clear()
    first, last, _, _ = stretch(losses, QUICK)
    chosen = [weights for segment in segments[first : last + 1] for weights in segment]
    params, at = QUICK.final(session.train_state.modifiers["0"], session.train_state.state.params)
    assert_close(params, trees.mean(trees.stack(chosen)), 1e-10)
    (end,) = final(session)
    assert end.step == at == points[last]
    # POGM with the ERM centre reaches 0.40 here, the others more.
    assert end.accuracies[0][4] > 0.35, "it has learnt: a domain it never saw, one in ten by chance"
    session.train_state = session.train_state._replace(state=session.train_state.state._replace(params=params))
    assert end.accuracies == session.accuracies()


def test_training_is_unchanged():
    with_, without = short(ERM()), short(ERM(), modifiers=())
    sessions = [Session([one.task(None)], Engine()) for one in (with_, without)]
    for session in sessions:
        list(train(session, with_.schedule))
    assert_close(sessions[0].train_state.state, sessions[1].train_state.state, 0.0)
    assert final(sessions[1]) == [None]


def test_batched_trials_equal_single_trials():
    other = dataclasses.replace(QUICK, tolerance=0.1)
    trials = [short(POGM()), short(POGM(), modifiers=(other,), seed=1, trial_seed=1, data_seed=1, test_domains=(3,))]
    together = Session([one.task(None) for one in trials], Engine())
    list(train(together, trials[0].schedule))
    ends = final(together)
    for row, one in enumerate(trials):
        alone = Session([one.task(None)], Engine())
        list(train(alone, one.schedule))
        assert_close(trees.index(together.train_state.modifiers, row), alone.train_state.modifiers, 1e-8)
        (end,) = final(alone)
        assert (ends[row].step, ends[row].accuracies[0]) == (end.step, pytest.approx(end.accuracies[0]))


def test_saved_and_loaded_run_continues_with_the_same_bits(tmp_path):
    one = short(ERM())
    whole, first, second = (Session([one.task(None)], Engine()) for _ in range(3))
    list(train(whole, one.schedule))
    rounds = iter(range(100))
    list(train(first, one.schedule, stop=lambda: next(rounds) == 17))
    checkpoint.save(tmp_path / "c", first.train_state, trial="t", after=16)
    second.train_state, _ = checkpoint.load(tmp_path / "c", second.train_state, "t")
    list(train(second, one.schedule, after=16))
    assert_close(second.train_state.modifiers, whole.train_state.modifiers, 0.0)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("count", [1, 2])
def test_captured_steps_equal_steps_on_the_cpu(count):
    trials = [short(POGM()), short(POGM(), seed=1, test_domains=(3,))][:count]
    captured = Session([one.task(None) for one in trials], Engine("cuda"))
    list(train(captured, trials[0].schedule))
    ends = final(captured)
    for row, one in enumerate(trials):
        plain = Session([one.task(None)], Engine("cpu"))
        list(train(plain, one.schedule))
        kept = trees.index(captured.train_state.modifiers, row) if count > 1 else captured.train_state.modifiers
        assert_close(trees.map_leaves(torch.Tensor.cpu, kept), plain.train_state.modifiers, 1e-7)
        assert ends[row].step == final(plain)[0].step


@pytest.mark.gpu
@needs_gpu
def test_step_does_not_synchronise():
    session = Session([short(ERM()).task(None)], Engine("cuda", capture=False))
    session.step()
    with no_synchronisation():
        session.step()
        loss = torch.zeros((), dtype=torch.float64, device="cuda")
        with torch.no_grad():
            QUICK.final(QUICK.observe(session.train_state.modifiers["0"], loss, 3), session.train_state.state.params)


def test_live_batch_norm_and_missing_validation_raise():
    state, problem = toy(ERM(), batch_norm=True)
    with pytest.raises(UsageError, match="freeze_bn"):
        SWAD().start(state, problem)
    with pytest.raises(UsageError, match="SWAD"):
        Learner(torch.nn.Linear(2, 2), ERM(), modifiers=[SWAD()])


def test_two_modifiers_with_final_weights_raise():
    with pytest.raises(UsageError, match="chooses the final weights; found SWAD and SWAD"):
        Modifier.find_final((SWAD(), Mixup(), SWAD()))
    with pytest.raises(UsageError, match="chooses the final weights"):
        Session([short(ERM(), SWAD()).task(None)], Engine())
    assert Modifier.find_final((Mixup(), SWAD())) == 1
    assert Modifier.find_final((Mixup(),)) is None


def test_docstring_has_paper_and_equation():
    assert all_modifiers()["SWAD"] is SWAD
    assert "(Cha et al., 2021)" in SWAD.__doc__.strip().splitlines()[0]
    assert ".. math::" in SWAD.__doc__


# In folders.


def test_run_writes_a_final_record_that_every_selection_uses(tmp_path):
    one = short(ERM())
    run(one, tmp_path / "run")
    (found,) = read_runs(tmp_path)
    assert [record["step"] for record in found.records] == one.schedule.points()
    session = Session([one.task(None)], Engine())
    list(train(session, one.schedule))
    (end,) = final(session)
    assert (found.final["swad"], found.final["step"]) == (True, end.step)
    assert found.final["accuracy"]["in"] == end.accuracies[0][::2]
    for selection in (SELECTIONS[0], SELECTIONS[2], oracle_early_stop(10**6)):
        (choice,) = selection([found])
        assert (choice.accuracy, choice.step) == (end.accuracies[0][0], end.step)
    run(one, tmp_path / "run")
    assert len(records(tmp_path / "run")) == len(one.schedule.points()) + 1


def test_batched_runs_write_their_final_records(tmp_path):
    trials = [short(ERM(), seed=seed, test_domains=(seed,)) for seed in (0, 1)]
    assert run_batch(trials, [tmp_path / "batch" / one.id for one in trials], RunOptions()) == [None, None]
    for one in trials:
        run(one, tmp_path / "alone" / one.id)
        batch, alone = (read_runs(tmp_path / where / one.id)[0] for where in ("batch", "alone"))
        assert batch.final["step"] == alone.final["step"]
        assert batch.final["accuracy"]["in"] == pytest.approx(alone.final["accuracy"]["in"])


def test_killed_and_resumed_run_ends_with_one_final_record_and_the_same_bits(tmp_path):
    words = ("--algorithm", "ERM", "--with", "SWAD", "--set", "converge=2", "--set", "tolerate=2", "--steps", 21)
    options = ("--test-domain", "75", "--evaluate-every", 4, "--checkpoint-seconds", 0, "--device", "cpu")

    def command(folder):
        if (folder / "trial.json").exists():
            return ("resume", folder, "--checkpoint-seconds", 0, "--device", "cpu")
        return ("run", "--dataset", "RotatedDigits", *words, *options, "--out", folder)

    clean = tmp_path / "clean"
    end = pogm(*command(clean))
    assert end.code == 0
    assert end.out.splitlines()[-1].endswith("with averaged weights")
    lines = [json.loads(line) for line in (clean / "records.jsonl").read_text().splitlines()]
    assert [line.get("swad", False) for line in lines] == [False] * 6 + [True]
    # in a segment, before the last record is written, and between it and `done`
    for fault, written in (("kill@step:11", 3), ("kill@append:7", 6), ("kill@replace:15", 7)):
        folder = tmp_path / fault
        assert pogm(*command(folder), fault=fault).code == -signal.SIGKILL
        assert not (folder / "done").exists()
        assert len(records(folder)) == written
        assert pogm(*command(folder)).code == 0
        assert records(folder) == records(clean)
        assert weights(folder) == weights(clean)
