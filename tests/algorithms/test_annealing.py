"""Methods whose objective changes in the middle of training."""

import pytest
import torch
from support import assert_close, batches, toy
from torch.func import vmap

from pogm import EQRM, ERM, IRM, RDM, Fishr, VREx
from pogm.algorithms.annealing import change_lr

LATER = 1e-3  # a learning rate


@pytest.mark.parametrize(
    "algorithm",
    [
        *(cls(penalty_anneal_iters=2) for cls in (IRM, VREx, Fishr)),
        *(RDM(penalty_anneal_iters=2, later_lr=lr) for lr in (0.0, LATER)),
        *(EQRM(burn_in_anneal_iters=2, later_lr=lr) for lr in (0.0, LATER)),
    ],
    ids=lambda algorithm: f"{type(algorithm).__name__}-{getattr(algorithm, 'later_lr', 0.0)}",
)
def test_adam_is_reset_when_the_objective_changes(algorithm):
    """The first step of Adam changes a weight by the learning rate of the run or by ``later_lr``."""
    counts, moves = [], []
    state, problem = toy(algorithm, lr=0.05)
    for number in range(4):
        after, _ = algorithm.step(state, batches(seed=number), problem)
        counts.append(after.optimizer["count"].item())
        moves.append((after.params["head.bias"] - state.params["head.bias"]).abs().max().item())
        state = after
    assert counts == [1, 2, 1, 2]
    assert moves[0] == pytest.approx(0.05, rel=1e-4)
    assert moves[2] == pytest.approx(getattr(algorithm, "later_lr", 0.0) or 0.05, rel=1e-4)


@pytest.mark.parametrize(("cls", "early"), [(IRM, 1), (VREx, 1), (Fishr, 0)])
def test_penalty_weight_changes_after_annealing(cls, early):
    algorithm = cls(penalty=1000.0, penalty_anneal_iters=5)
    state, problem = toy(algorithm)
    (batch,) = batches()
    for step, weight in ((0, early), (4, early), (5, 1000), (6, 1000)):
        loss = algorithm.loss(problem.model(state.params, state), batch, state._replace(step=torch.tensor(step)))
        torch.testing.assert_close(loss.value, loss.metrics["nll"] + weight * loss.metrics["penalty"])


@pytest.mark.parametrize(
    "algorithm", [RDM(penalty_anneal_iters=2, later_lr=LATER), EQRM(burn_in_anneal_iters=2, later_lr=LATER)], ids=repr
)
def test_before_annealing_it_equals_erm(algorithm):
    mine, problem = toy(algorithm)
    theirs, _ = toy(ERM())
    for made in batches(2):
        mine, _ = algorithm.step(mine, [made], problem)
        theirs, _ = ERM().step(theirs, [made], problem)
    assert_close(mine.params, theirs.params)
    (batch,) = batches()
    for step in range(4):
        loss = algorithm.loss(problem.model(mine.params, mine), batch, mine._replace(step=torch.tensor(step)))
        assert torch.isclose(loss.value, loss.metrics["nll"]) == (step < 2)


@pytest.mark.parametrize(("late", "lr", "found"), [(False, 0.3, 0.1), (True, 0.3, 0.3), (True, 0.0, 0.1)])
def test_learning_rate_changes_in_the_second_phase_if_given(late, lr, found):
    _, problem = toy(ERM(), lr=0.1, weight_decay=0.01)
    changed = change_lr(problem, torch.tensor(late), lr)
    assert changed.optimizer.lr.item() == found, "to the last bit"
    assert changed.optimizer.weight_decay == 0.01
    assert problem.optimizer.lr == 0.1


def test_batched_trials_have_separate_learning_rates():
    _, problem = toy(ERM(), lr=0.1)
    late, rates = torch.tensor([True, True, False]), torch.tensor([0.3, 0.0, 0.3], dtype=torch.float64)
    found = vmap(lambda late, lr: change_lr(problem, late, lr).optimizer.lr)(late, rates)
    assert found.tolist() == [0.3, 0.1, 0.1]
