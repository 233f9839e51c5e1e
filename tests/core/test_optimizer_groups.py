"""Several optimizers as one."""

import pytest
import torch
from support import assert_close, batches, toy
from torch import nn
from torch.func import vmap

from pogm import ERM
from pogm._system.errors import UsageError
from pogm.core import random, trees
from pogm.core.dropout import Dropout
from pogm.core.model import Network
from pogm.core.optimizer_groups import OptimizerGroup, OptimizerGroups, group_gradient, group_step
from pogm.core.optimizers import SGD, Adam
from pogm.core.state import Loss

PARAMS = {"a.weight": torch.tensor([1.0, 2.0]), "a.bias": torch.tensor([3.0]), "b.weight": torch.tensor([4.0])}
SLOPES = {"a.weight": torch.tensor([0.1, -0.2]), "a.bias": torch.tensor([0.3]), "b.weight": torch.tensor([-0.4])}


class Game(ERM):
    """A network with dropout whose two parts are moved by two."""

    def build(self, features, width, num_classes, num_domains):
        return Network(nn.Sequential(features, Dropout(0.5)), nn.Linear(width, num_classes))

    def optimizer(self, lr, weight_decay):
        return OptimizerGroups(
            first=OptimizerGroup(("features.",), Adam(lr)), second=OptimizerGroup(("head.",), SGD(lr))
        )


def risk(model):
    return Loss(model.risks(batches()[0]).mean())


def players(lr=0.5):
    return OptimizerGroups(a=OptimizerGroup(("a.",), Adam(lr, 0.01)), b=OptimizerGroup(("b.",), SGD(2 * lr)))


def test_each_player_moves_as_its_own_optimizer_would():
    both = players()
    moved, state = both.update(PARAMS, SLOPES, both.init(PARAMS))
    moved, state = both.update(moved, SLOPES, state)
    for who, optimizer in (("a", Adam(0.5, 0.01)), ("b", SGD(1.0))):
        own, gradient = both.leaves(PARAMS, who), both.leaves(SLOPES, who)
        after, kept = optimizer.update(own, gradient, optimizer.init(own))
        after, kept = optimizer.update(after, gradient, kept)
        assert_close(both.leaves(moved, who), after, 0.0)
        assert_close(state[who], kept, 0.0)


def test_a_gradient_of_one_players_leaves_moves_no_other():
    both = players()
    start = both.init(PARAMS)
    moved, state = both.update(PARAMS, both.leaves(SLOPES, "b"), start)
    assert moved["b.weight"] == 4.4
    assert_close(both.leaves(moved, "a"), both.leaves(PARAMS, "a"), 0.0)
    assert_close(state["a"], start["a"], 0.0)
    assert state["b"]["count"] == 1


def test_the_weights_stay_in_their_order():
    both = players()
    moved, _ = both.update(PARAMS, both.leaves(SLOPES, "b"), both.init(PARAMS))
    assert list(moved) == list(PARAMS)


def test_a_gradient_of_half_a_players_leaves_is_an_error():
    both = players()
    with pytest.raises(KeyError, match=r"a\.bias"):
        both.update(PARAMS, {"a.weight": SLOPES["a.weight"]}, both.init(PARAMS))


@pytest.mark.parametrize(("prefix", "found"), [("c.", "none"), ("a.w", "a, b")])
def test_a_leaf_without_a_player_or_with_two_is_refused(prefix, found):
    wrong = OptimizerGroups(a=OptimizerGroup(("a.weight",), SGD(1.0)), b=OptimizerGroup((prefix, "b."), SGD(1.0)))
    with pytest.raises(UsageError, match=f"found {found}"):
        wrong.init(PARAMS)


def test_a_player_without_leaves_is_refused():
    """A module of one's own, which has no discriminator."""
    some = OptimizerGroups(
        all=OptimizerGroup(("a.", "b."), SGD(1.0)), discriminator=OptimizerGroup(("discriminator.",), SGD(1.0))
    )
    with pytest.raises(UsageError, match="networks of its own"):
        some.init(PARAMS)


def test_players_of_trials_with_their_own_rates_share_a_batch():
    rates = torch.tensor([0.1, 0.7])

    def update(lr):
        both = players(lr)
        return both.update(PARAMS, SLOPES, both.init(PARAMS))

    for row, lr in enumerate(rates):
        assert_close(trees.index(vmap(update)(rates), row), update(lr), 1e-6)


def test_a_turn_moves_those_whose_turn_it_is_and_counts_no_step():
    state, problem = toy(Game(), batch_norm=True)
    after, loss = group_step(("first",), risk, state, problem, random.key(1))
    changed = {name.split(".")[0] for name, leaf in after.params.items() if not torch.equal(leaf, state.params[name])}
    assert changed == {"features"}
    assert after.step == state.step
    assert torch.equal(after.key, state.key)
    assert not torch.equal(after.buffers["features.0.1.running_mean"], state.buffers["features.0.1.running_mean"])
    assert loss.value > 0


def test_slopes_are_those_of_the_whole_gradient():
    state, problem = toy(Game())
    both, _ = group_gradient(("first", "second"), risk, state, problem, state.key)
    second, _ = group_gradient(("second",), risk, state, problem, state.key)
    assert both.keys() == state.params.keys()
    assert second.keys() == {"head.weight", "head.bias"}
    assert_close({name: both[name] for name in second}, second)
    assert_close(both, ERM().gradient(state, batches()[0], problem)[0])


def test_every_pass_has_the_dropout_of_its_key():
    state, problem = toy(Game())
    once, again, other = (
        group_gradient(("second",), risk, state, problem, random.key(seed))[1].value for seed in (1, 1, 2)
    )
    assert once == again
    assert once != other
