"""ERM++."""

import copy

import pytest
import torch
from support import assert_close, batches, steps, toy, trial
from torch import nn
from torch.nn.functional import cross_entropy

from pogm import ERM, LPFT, SMA, Learner
from pogm._system.errors import UsageError
from pogm.algorithms.erm_plus_plus import ERMPlusPlus
from pogm.engine.session import Engine, Session


@pytest.mark.parametrize("linear_lr", [0.0, 0.01])
def test_steps_equal_a_plain_torch_implementation(linear_lr):
    """As in DomainBed: a counter that starts at 0 chooses the optimizer, and a running mean averages."""
    method = ERMPlusPlus(linear_lr=linear_lr, linear_anneal_iters=3, average_anneal_iters=5)
    state, problem = toy(method, weight_decay=0.01)
    network = copy.deepcopy(problem.network).requires_grad_()
    linear = torch.optim.Adam(network.head.parameters(), linear_lr or 0.05, weight_decay=0.01)
    full = torch.optim.Adam(network.parameters(), 0.05, weight_decay=0.01)
    average, averaged = {}, 0
    for counter, batch in enumerate(batches(8)):
        state, metrics = method.step(state, [batch], problem)
        loss = cross_entropy(network(batch.x.flatten(0, 1)), batch.y.flatten())
        network.zero_grad()
        loss.backward()
        (full if counter > 2 else linear).step()
        current = {name: leaf.detach().clone() for name, leaf in network.named_parameters()}
        if counter + 1 >= 5:
            averaged += 1
            average = {n: (average[n] * averaged + leaf) / (1 + averaged) for n, leaf in current.items()}
        else:
            average = current
        torch.testing.assert_close(metrics["loss"], loss.detach())
        assert_close(state.params, average, 1e-9)
    assert_close(state.memory, {f"trained.{name}": leaf for name, leaf in current.items()}, 1e-9)


def test_average_is_the_mean_of_the_later_weights():
    """With T = 3, the weights of the run are the mean of the trained weights from the second step on."""
    method = ERMPlusPlus(linear_anneal_iters=0, average_anneal_iters=3)
    trained = [steps(method, count).memory["trained.head.weight"] for count in range(1, 6)]
    torch.testing.assert_close(steps(method, 5).params["head.weight"], torch.stack(trained[1:]).mean(0))


def test_warm_up_changes_only_the_classifier():
    method = ERMPlusPlus(linear_anneal_iters=3)
    before, after = steps(method, 0).params, steps(method, 3).params
    changed = {name for name, leaf in before.items() if not torch.equal(leaf, after[name])}
    assert changed == {"head.weight", "head.bias"}


def test_without_warm_up_and_average_it_is_erm():
    method = ERMPlusPlus(linear_anneal_iters=0, average_anneal_iters=1000)
    assert_close(steps(method, 4).params, steps(ERM(), 4).params)


@pytest.mark.parametrize("batch_norm", [False, True])
def test_with_both_parts_switched_off_it_is_erm(batch_norm):
    method = ERMPlusPlus(warm_up=False, average=False)
    found, expected = (steps(one, 4, batch_norm=batch_norm) for one in (method, ERM()))
    assert_close(
        (found.params, found.buffers, found.optimizer), (expected.params, expected.buffers, expected.optimizer)
    )


def test_parts_can_be_switched_off_one_by_one():
    """Without the warm-up, all weights move at once; without the average, the weights are those that are trained."""
    options = {"linear_anneal_iters": 2, "average_anneal_iters": 1}
    start = steps(ERMPlusPlus(), 0).params["features.0.weight"]
    assert not torch.equal(steps(ERMPlusPlus(warm_up=False, **options), 1).params["features.0.weight"], start)
    for average in (True, False):
        state = steps(ERMPlusPlus(average=average, **options), 4)
        is_trained = torch.equal(state.params["head.weight"], state.memory["trained.head.weight"])
        assert is_trained is not average


@pytest.mark.parametrize("off", [{}, {"warm_up": False}, {"average": False}], ids=["all", "no warm-up", "no average"])
def test_parts_equal_the_modifiers_lpft_and_sma(off):
    """ERM with the modifiers evaluates the weights of ERM++, and trains the same ones."""
    method = ERMPlusPlus(linear_anneal_iters=3, average_anneal_iters=5, **off)
    parts = [LPFT(linear_anneal_iters=3)] if method.warm_up else []
    parts += [SMA(start_step=4)] if method.average else []
    whole, made = (
        Session([trial(algorithm, precision="fp64", modifiers=tuple(modifiers)).task(None)], Engine())
        for algorithm, modifiers in ((method, ()), (ERM(), parts))
    )
    for _ in range(8):
        whole.step()
        made.step()
        assert_close(made.predicting_tensors(), whole.predicting_tensors(), 1e-10)
    trained = {name: whole.train_state.state.memory[f"trained.{name}"] for name in made.train_state.state.params}
    assert_close(dict(made.train_state.state.params), trained, 1e-10)


def test_batch_norm_statistics_are_those_of_a_pass_with_the_average():
    method = ERMPlusPlus(linear_anneal_iters=0, average_anneal_iters=1)
    state, problem = toy(method, batch_norm=True)
    for batch in batches(3):
        before = state
        state, _ = method.step(state, [batch], problem)
    inputs = batch.x.flatten(0, 1) @ state.params["features.0.weight"].T + state.params["features.0.bias"]
    expected = 0.9 * before.buffers["features.1.running_mean"] + 0.1 * inputs.mean(0)
    torch.testing.assert_close(state.buffers["features.1.running_mean"], expected)


def test_module_without_a_head_raises_if_there_is_a_warm_up():
    made = [(torch.randn(4, 6), torch.zeros(4, dtype=torch.int64)) for _ in range(2)]
    with pytest.raises(UsageError, match="a network with a head"):
        Learner(nn.Linear(6, 3), ERMPlusPlus()).step(made)
    assert Learner(nn.Linear(6, 3), ERMPlusPlus(linear_anneal_iters=0)).step(made)["loss"] > 0
