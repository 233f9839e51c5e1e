"""LP-FT: the classifier alone, then all weights."""

import copy

import pytest
import torch
from promises import assert_batched_equals_single, assert_captured_equals_the_host, assert_resumes, session
from support import assert_close, batches, needs_gpu, toy, trial
from torch import nn
from torch.nn.functional import cross_entropy

from pogm import DANN, ERM, LPFT, POGM, SMA, ERMPlusPlus, Learner, WiSEFT
from pogm._system.errors import UsageError
from pogm.core import trees
from pogm.core.flat_params import FlatParams


def test_steps_equal_two_optimizers_of_torch():
    """A first Adam trains the head for three steps; a second one, which is new, trains all weights."""
    modifier, (state, problem) = LPFT(linear_anneal_iters=3), toy(ERM(), weight_decay=0.01)
    network = copy.deepcopy(problem.network).requires_grad_()
    probe = torch.optim.Adam(network.head.parameters(), 0.05, weight_decay=0.01)
    full = torch.optim.Adam(network.parameters(), 0.05, weight_decay=0.01)
    memory = modifier.start(state, problem)
    for number, batch in enumerate(batches(6)):
        state, _ = ERM().step(state, [batch], problem)
        memory, state = modifier.after(memory, state, [batch], problem)
        network.zero_grad()
        cross_entropy(network(batch.x.flatten(0, 1)), batch.y.flatten()).backward()
        (probe if number < 3 else full).step()
        assert_close(state.params, {name: leaf.detach() for name, leaf in network.named_parameters()}, 1e-9)


@pytest.mark.parametrize("algorithm", [ERM(), POGM(inner_steps=2), DANN()], ids=["ERM", "POGM", "DANN"])
def test_features_are_fixed_and_the_optimizer_is_reset_at_the_end_of_the_first_phase(algorithm):
    made = session(trial(algorithm, precision="fp64", modifiers=(LPFT(linear_anneal_iters=2),)))
    first = trees.map_leaves(torch.clone, dict(made.train_state.state.params))
    changed, moments = [], []
    for _ in range(3):
        made.step()
        state = made.train_state.state
        changed.append(
            {name.partition(".")[0] for name, leaf in first.items() if not torch.equal(leaf, state.params[name])}
        )
        moments.append(any(leaf.any() for leaf in trees.leaves(state.optimizer)))
    assert all("features" not in parts and "head" in parts for parts in changed[:2])
    assert {"features", "head"} <= changed[2]
    assert moments == [True, False, True]


def test_weights_stay_flat():
    made = session(trial(ERM(), modifiers=(LPFT(linear_anneal_iters=1),)))
    for _ in range(2):
        made.step()
    assert isinstance(made.train_state.state.params, FlatParams)


@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_averages_are_of_the_restored_weights_in_any_order_of_the_modifiers(order):
    modifiers = LPFT(linear_anneal_iters=3), SMA(start_step=1)
    made = session(trial(ERM(), precision="fp64", modifiers=tuple(modifiers[index] for index in order)))
    first = made.train_state.state.params["features.1.weight"].clone()
    for _ in range(3):
        made.step()
    torch.testing.assert_close(made.predicting_tensors()["features.1.weight"], first, rtol=1e-15, atol=0)


def test_wise_ft_starts_from_the_linear_probe():
    """With WiSEFT from step 2 on, the features of the mixture are between the pretrained and the current ones."""
    made = session(trial(ERM(), precision="fp64", modifiers=(LPFT(linear_anneal_iters=2), WiSEFT(start_step=2))))
    seen = []
    for _ in range(4):
        made.step()
        seen.append(trees.map_leaves(torch.clone, dict(made.train_state.state.params)))
    tensors = made.predicting_tensors()
    expected = {name: (leaf + seen[3][name]) / 2 for name, leaf in seen[1].items()}
    assert_close({name: tensors[name] for name in expected}, expected, 1e-12)


def test_batched_trials_equal_single_trials():
    assert_batched_equals_single(POGM(), LPFT(linear_anneal_iters=1), network="mlp")


def test_saved_and_loaded_run_continues_with_the_same_bits():
    assert_resumes(ERM(), LPFT(linear_anneal_iters=3), network="mlp")


def test_trajectories_on_the_host_give_the_same_weights():
    made = trial(POGM(), precision="fp64", modifiers=(LPFT(linear_anneal_iters=2),))
    plain, offloaded = session(made), session(made, trajectories="host")
    for each in (plain, offloaded):
        for _ in range(4):
            each.step()
    assert_close(offloaded.train_state.state.params, plain.train_state.state.params, 1e-12)


def test_learner_trains_the_head_first():
    torch.manual_seed(0)
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4)).double()
    learner = Learner(module, ERM(), head="2", modifiers=[LPFT(linear_anneal_iters=1)])
    before = {name: leaf.clone() for name, leaf in module.state_dict().items()}
    learner.step(batches()[0])
    changed = {name for name, leaf in module.state_dict().items() if not torch.equal(leaf, before[name])}
    assert changed == {"2.weight", "2.bias"}


def test_module_without_a_head_and_erm_plus_plus_raise():
    with pytest.raises(UsageError, match="a network with a head"):
        Learner(nn.Linear(6, 4).double(), ERM(), modifiers=[LPFT()]).step(batches()[0])
    with pytest.raises(UsageError, match="ERMPlusPlus has linear_anneal_iters"):
        session(trial(ERMPlusPlus(), modifiers=(LPFT(),)))


@pytest.mark.gpu
@needs_gpu
def test_captured_steps_equal_steps_on_the_cpu():
    assert_captured_equals_the_host(ERM(), LPFT(linear_anneal_iters=2))
