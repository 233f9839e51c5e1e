"""Optimizer groups: several optimizers as one."""

import pytest
import torch
from support import assert_close, batches, toy
from torch import nn
from torch.func import vmap

from pogm import ERM
from pogm._system.errors import UsageError
from pogm.core import random, trees
from pogm.core.model import Network
from pogm.core.optimizer_groups import OptimizerGroup, OptimizerGroups, group_gradient, group_step
from pogm.core.optimizers import SGD, Adam
from pogm.core.random_layers import Dropout
from pogm.core.state import Loss

PARAMS = {"a.weight": torch.tensor([1.0, 2.0]), "a.bias": torch.tensor([3.0]), "b.weight": torch.tensor([4.0])}
GRADIENT = {"a.weight": torch.tensor([0.1, -0.2]), "a.bias": torch.tensor([0.3]), "b.weight": torch.tensor([-0.4])}


class Game(ERM):
    """A network with dropout and two optimizer groups."""

    def build(self, features, width, num_classes, num_domains):
        return Network(nn.Sequential(features, Dropout(0.5)), nn.Linear(width, num_classes))

    def optimizer(self, lr, weight_decay):
        return OptimizerGroups(
            first=OptimizerGroup(("features.",), Adam(lr)), second=OptimizerGroup(("head.",), SGD(lr))
        )


def risk(model):
    return Loss(model.risks(batches()[0]).mean())


def make_groups(lr=0.5):
    return OptimizerGroups(a=OptimizerGroup(("a.",), Adam(lr, 0.01)), b=OptimizerGroup(("b.",), SGD(2 * lr)))


def test_each_group_is_updated_by_its_optimizer():
    groups = make_groups()
    moved, state = groups.update(PARAMS, GRADIENT, groups.init(PARAMS))
    moved, state = groups.update(moved, GRADIENT, state)
    for key, optimizer in (("a", Adam(0.5, 0.01)), ("b", SGD(1.0))):
        params, gradient = groups.leaves(PARAMS, key), groups.leaves(GRADIENT, key)
        after, expected = optimizer.update(params, gradient, optimizer.init(params))
        after, expected = optimizer.update(after, gradient, expected)
        assert_close(groups.leaves(moved, key), after, 0.0)
        assert_close(state[key], expected, 0.0)


def test_gradient_of_one_group_updates_only_this_group():
    groups = make_groups()
    start = groups.init(PARAMS)
    moved, state = groups.update(PARAMS, groups.leaves(GRADIENT, "b"), start)
    assert moved["b.weight"] == 4.4
    assert_close(groups.leaves(moved, "a"), groups.leaves(PARAMS, "a"), 0.0)
    assert_close(state["a"], start["a"], 0.0)
    assert state["b"]["count"] == 1


def test_update_keeps_the_order_of_the_weights():
    groups = make_groups()
    moved, _ = groups.update(PARAMS, groups.leaves(GRADIENT, "b"), groups.init(PARAMS))
    assert list(moved) == list(PARAMS)


def test_gradient_of_a_part_of_a_group_is_an_error():
    groups = make_groups()
    with pytest.raises(KeyError, match=r"a\.bias"):
        groups.update(PARAMS, {"a.weight": GRADIENT["a.weight"]}, groups.init(PARAMS))


@pytest.mark.parametrize(("prefix", "found"), [("c.", "none"), ("a.w", "a, b")])
def test_weights_in_no_group_or_in_two_groups_are_refused(prefix, found):
    wrong = OptimizerGroups(a=OptimizerGroup(("a.weight",), SGD(1.0)), b=OptimizerGroup((prefix, "b."), SGD(1.0)))
    with pytest.raises(UsageError, match=f"found {found}"):
        wrong.init(PARAMS)


def test_group_without_weights_is_refused():
    """For example a user's module, which has no discriminator."""
    some = OptimizerGroups(
        all=OptimizerGroup(("a.", "b."), SGD(1.0)), discriminator=OptimizerGroup(("discriminator.",), SGD(1.0))
    )
    with pytest.raises(UsageError, match="networks of its own"):
        some.init(PARAMS)


def test_trials_with_different_rates_can_be_batched():
    rates = torch.tensor([0.1, 0.7])

    def update(lr):
        groups = make_groups(lr)
        return groups.update(PARAMS, GRADIENT, groups.init(PARAMS))

    for row, lr in enumerate(rates):
        assert_close(trees.index(vmap(update)(rates), row), update(lr), 1e-6)


def test_group_step_updates_its_groups_and_does_not_count_a_step():
    state, problem = toy(Game(), batch_norm=True)
    after, loss = group_step(("first",), risk, state, problem, random.key(1))
    changed = {name.split(".")[0] for name, leaf in after.params.items() if not torch.equal(leaf, state.params[name])}
    assert changed == {"features"}
    assert after.step == state.step
    assert torch.equal(after.key, state.key)
    assert not torch.equal(after.buffers["features.0.1.running_mean"], state.buffers["features.0.1.running_mean"])
    assert loss.value > 0


def test_group_gradient_is_a_part_of_the_whole_gradient():
    state, problem = toy(Game())
    both, _ = group_gradient(("first", "second"), risk, state, problem, state.key)
    second, _ = group_gradient(("second",), risk, state, problem, state.key)
    assert both.keys() == state.params.keys()
    assert second.keys() == {"head.weight", "head.bias"}
    assert_close({name: both[name] for name in second}, second)
    assert_close(both, ERM().gradient(state, batches()[0], problem)[0])


def test_dropout_of_a_pass_depends_on_its_key():
    state, problem = toy(Game())
    once, again, other = (
        group_gradient(("second",), risk, state, problem, random.key(seed))[1].value for seed in (1, 1, 2)
    )
    assert once == again
    assert once != other
