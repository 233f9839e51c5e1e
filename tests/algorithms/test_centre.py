"""The centre of POGM's ball. Around ERM's trajectory, κ = 0 equals ERM (Corollary 1) in every execution mode."""

from dataclasses import dataclass, replace

import pytest
import torch
from rounds import centre_of, one_round, trajectories
from support import K, assert_close, batches, needs_gpu, steps, toy, trial

from pogm import ERM, POGM, Reptile, pareto
from pogm.core.batch import Batch
from pogm.core.optimizers import SGD, apply_reset
from pogm.engine.engine import Engine
from pogm.engine.per_domain import map_by_loop, map_by_vmap
from pogm.engine.session import Session
from pogm.modifiers.base import Modifier


@dataclass(frozen=True)
class SgdERM(ERM):
    """ERM, trained by plain gradient descent."""

    def optimizer(self, lr, weight_decay):
        return SGD(lr, weight_decay)


ERMS = {"adam": ERM(), "sgd": SgdERM()}
every_optimizer = pytest.mark.parametrize("optimizer", ERMS)
every_length = pytest.mark.parametrize("inner_steps", [1, 5])


def without_a_ball(optimizer, inner_steps):
    return POGM(kappa=0.0, inner_optimizer=optimizer, inner_steps=inner_steps)


@every_optimizer
@every_length
@pytest.mark.parametrize("each_domain", [map_by_loop, map_by_vmap], ids=["loop", "vmap"])
@pytest.mark.parametrize("weight_decay", [0.0, 0.01])
def test_without_a_ball_every_round_equals_erm(optimizer, inner_steps, each_domain, weight_decay):
    """Corollary 1."""
    pogm, erm = without_a_ball(optimizer, inner_steps), ERMS[optimizer]
    ours, problem = toy(pogm, each_domain=each_domain, weight_decay=weight_decay)
    theirs, plain = toy(erm, weight_decay=weight_decay)
    for number in range(4):
        made = batches(inner_steps, seed=number)
        ours, _ = pogm.step(ours, made, problem)
        for batch in made:
            theirs, _ = erm.step(theirs, [batch], plain)
        assert_close(ours.params, theirs.params, 1e-13)
        assert_close(apply_reset(ours.optimizer["erm"]), theirs.optimizer, 1e-13)


def sessions(optimizer, inner_steps, engine, seeds=(0,), dataset="RotatedDigits", network=None):
    """Return a session of POGM without a ball and one of ERM, each with a trial for every seed."""
    made = []
    for algorithm in (without_a_ball(optimizer, inner_steps), ERMS[optimizer]):
        one = trial(algorithm, dataset, precision="fp64")
        if network is not None:
            one = replace(one, training=replace(one.training, network=network))
        tasks = [replace(one, seed=seed, trial_seed=seed).task(None) for seed in seeds]
        made.append(Session(tasks, engine))
    return made


def assert_same_rounds(ours, theirs, inner_steps, rounds=3, tolerance=1e-10):
    for _ in range(rounds):
        ours.step()
        for _ in range(inner_steps):
            theirs.step()
        assert_close(dict(ours.train_state.state.params), dict(theirs.train_state.state.params), tolerance)


MODES = {
    "single, loop": (Engine(domains="loop"), (0,)),
    "single, vmap": (Engine(domains="vmap"), (0,)),
    "trajectories on the host": (Engine(domains="loop", trajectories="host"), (0,)),
    "trials by vmap": (Engine(trials="vmap"), (0, 1)),
    "trials apart": (Engine(trials="apart"), (0, 1)),
}


@every_optimizer
@every_length
@pytest.mark.parametrize("mode", MODES)
def test_corollary_1_holds_in_every_mode(mode, optimizer, inner_steps):
    engine, seeds = MODES[mode]
    assert_same_rounds(*sessions(optimizer, inner_steps, engine, seeds), inner_steps)


@pytest.mark.gpu
@needs_gpu
@every_optimizer
@every_length
@pytest.mark.parametrize("compiled", ["off", "on"])
@pytest.mark.parametrize(("domains", "seeds"), [("loop", (0,)), ("streams", (0,)), ("vmap", (0,)), ("auto", (0, 1))])
def test_corollary_1_holds_in_a_captured_round(domains, seeds, compiled, optimizer, inner_steps):
    engine = Engine("cuda", domains=domains, compile=compiled)
    network = "small_cnn" if domains == "streams" else None
    ours, theirs = sessions(optimizer, inner_steps, engine, seeds, network=network)
    assert ours.captured
    assert_same_rounds(ours, theirs, inner_steps, tolerance=1e-8)


def test_mean_centre_equals_erm_only_for_one_step_of_sgd():
    sgd = POGM(kappa=0.0, inner_optimizer="sgd", centre="mean")
    assert_close(steps(sgd, 5).params, steps(SgdERM(), 5).params)
    for other, erm, count in (
        (POGM(kappa=0.0, centre="mean"), ERM(), 1),
        (POGM(kappa=0.0, inner_optimizer="sgd", inner_steps=5, centre="mean"), SgdERM(), 5),
    ):
        ours, _ = toy(other)
        theirs, plain = toy(erm)
        made = batches(count)
        for batch in made:
            theirs, _ = erm.step(theirs, [batch], plain)
        after, _ = other.step(ours, made, toy(other)[1])
        gaps = [(after.params[n] - theirs.params[n]).abs().max() for n in after.params]
        assert max(gaps) > 1e-4


def test_without_a_ball_the_mean_centre_is_reptile():
    assert_close(steps(POGM(kappa=0.0, centre="mean", meta_lr=0.5), 3).params, steps(Reptile(), 3).params)


@pytest.mark.parametrize("inner_steps", [1, 2])
def test_erm_centre_needs_no_further_pass_with_one_inner_step(inner_steps):
    """One inner step takes the K gradients of the copies; with more, each takes a pooled gradient in addition."""
    pogm = POGM(inner_steps=inner_steps)
    state, problem = toy(pogm)
    seen = []

    def counted(objective):
        def gradient(params):
            slopes, loss = problem.gradient(objective)(params)
            seen.append(loss.value)
            return slopes, loss

        return gradient

    pogm.step(state, batches(inner_steps), replace(problem, gradient=counted))
    assert len(seen) == (K if inner_steps == 1 else 2 * K + 2)


@dataclass(frozen=True)
class Coupled(Modifier):
    """A penalty on the spread of the logits over all samples of a pass."""

    def penalty(self, model, batch):
        return model(batch.x.flatten(0, 1)).var(0).sum()


@every_length
def test_a_modifier_that_couples_samples_gets_a_pooled_pass(inner_steps):
    """The gradient of the pooled risk is then not the mean of the domains' gradients."""
    pogm = POGM(kappa=0.0, inner_steps=inner_steps)
    ours, problem = toy(pogm)
    theirs, plain = toy(ERM())
    more = {"penalties": Modifier.penalties((Coupled(),)), "mixes": Coupled().mixes_samples}
    problem, plain = replace(problem, **more), replace(plain, **more)
    made = batches(inner_steps)
    after, _ = pogm.step(ours, made, problem)
    for batch in made:
        theirs, _ = ERM().step(theirs, [batch], plain)
    assert_close(after.params, theirs.params, 1e-13)


def test_pooled_pass_uses_batch_norm_statistics_of_all_domains():
    """The weights equal ERM's; the running statistics are those of the copies."""
    pogm = POGM(kappa=0.0, inner_optimizer="sgd")
    ours, problem = toy(pogm, batch_norm=True)
    theirs, plain = toy(SgdERM(), batch_norm=True)
    (batch,) = batches()
    after, _ = pogm.step(ours, [batch], problem)
    assert_close(after.params, SgdERM().step(theirs, [batch], plain)[0].params, 1e-13)


def test_optimizer_of_erm_is_kept_or_reset_between_rounds():
    for inner_state in ("persist", "reset"):
        pogm = POGM(kappa=0.0, inner_state=inner_state)
        kept = inner_state == "persist"
        assert steps(pogm, 2).optimizer["erm"]["count"] == (2.0 if kept else 0.0)
        there, erm = steps(pogm, 3).params, steps(ERM(), 3).params
        assert all(torch.allclose(there[name], leaf) for name, leaf in erm.items()) == kept


def test_nonfinite_domain_also_resets_the_optimizer_of_erm():
    (batch,) = batches()
    x = batch.x.clone()
    x[1, 0, 0] = torch.nan
    pogm = POGM()
    state = steps(pogm, 1)
    _, problem = toy(pogm)
    after, metrics = pogm.step(state, [Batch(x, batch.y)], problem)
    assert_close(after.params, state.params, 0.0)
    assert metrics["skipped"] == 1
    assert after.optimizer["erm"]["count"] == 0
    again, _ = pogm.step(after, batches(seed=7), problem)
    assert all(leaf.isfinite().all() for leaf in again.params.values())


@pytest.mark.parametrize("partition", ["block", "layer"])
def test_every_part_has_a_ball_around_erm(partition):
    pogm = POGM(kappa=0.5, partition=partition)
    before, after, _ = one_round(pogm)
    rows = trajectories(pogm)
    centre = dict(zip(rows, torch.split(centre_of(pogm, None), [rows[n][0].numel() for n in rows]), strict=True))
    for part in ("features.", "head."):
        names = [name for name in rows if name.startswith(part)]
        h = torch.cat([rows[name].flatten(1) for name in names], 1)
        h_0 = torch.cat([centre[name] for name in names])
        solution = pareto.solve(pareto.gramian(h), 0.5, centre=(h @ h_0, h_0 @ h_0))
        moved = torch.cat([(after.params[name] - before.params[name]).flatten() for name in names])
        torch.testing.assert_close(moved, h_0 + solution.weights @ h, rtol=1e-7, atol=1e-10)


def test_with_the_classifier_partition_the_features_follow_erm():
    pogm = POGM(partition="classifier")
    before, after, _ = one_round(pogm)
    erm, problem = toy(ERM())
    theirs = ERM().step(erm, batches(), problem)[0].params
    for name in before.params:
        same = torch.allclose(after.params[name], theirs[name], rtol=1e-12, atol=1e-12)
        assert same == name.startswith("features.")
