"""Learner: algorithms in a user's own training loop."""

import pytest
import torch
from support import INPUTS, C, K, batches
from torch import nn

from pogm import ERM, MADG, POGM, Batch, Fish, Fishr, Learner, Mixup
from pogm._system.errors import UsageError


class Plain(nn.Module):
    """An ordinary module."""

    def __init__(self, norm=False):
        super().__init__()
        self.stem = nn.Linear(INPUTS, 7)
        self.norm = nn.BatchNorm1d(7) if norm else nn.Identity()
        self.fc = nn.Linear(7, C)

    def forward(self, x):
        return self.fc(torch.relu(self.norm(self.stem(x))))


def pairs(seed=0):
    (batch,) = batches(seed=seed)
    return [(batch.x[k].float(), batch.y[k]) for k in range(K)]


def test_erm_equals_a_training_loop_with_torch():
    torch.manual_seed(0)
    module, reference = Plain(), Plain()
    reference.load_state_dict(module.state_dict())
    learner = Learner(module, ERM(), lr=0.01, weight_decay=0.1)
    optimizer = torch.optim.Adam(reference.parameters(), lr=0.01, weight_decay=0.1)
    for seed in range(5):
        data = pairs(seed)
        learner.step(data)
        logits = reference(torch.cat([x for x, _ in data]))
        loss = nn.functional.cross_entropy(logits, torch.cat([y for _, y in data]))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for left, right in zip(module.parameters(), reference.parameters(), strict=True):
        torch.testing.assert_close(left, right)


@pytest.mark.parametrize("algorithm", [ERM(), Fish(), Fishr(penalty_anneal_iters=0), POGM()])
def test_module_is_trained_in_place(algorithm):
    module = Plain(norm=True)
    before = {name: leaf.clone() for name, leaf in module.state_dict().items()}
    metrics = Learner(module, algorithm, head="fc").step(pairs())
    assert metrics["loss"].isfinite()
    changed = {name for name, leaf in module.state_dict().items() if not torch.equal(leaf, before[name])}
    assert changed >= {"stem.weight", "fc.weight", "fc.bias", "norm.running_mean", "norm.num_batches_tracked"}


def test_name_of_the_head_does_not_change_pogm():
    torch.manual_seed(0)
    plain, named = Plain(), Plain()
    named.load_state_dict(plain.state_dict())
    for seed in range(3):
        if seed == 0:
            learners = Learner(plain, POGM()), Learner(named, POGM(), head="fc")
        for learner in learners:
            learner.step(pairs(seed))
    for left, right in zip(plain.parameters(), named.parameters(), strict=True):
        torch.testing.assert_close(left, right)


def test_weights_change_when_a_round_has_all_its_minibatches():
    module = Plain()
    learner = Learner(module, POGM(inner_steps=3))
    before = module.fc.weight.clone()
    assert learner.step(pairs(0)) is None
    assert learner.step(pairs(1)) is None
    assert torch.equal(module.fc.weight, before)
    assert learner.step(pairs(2)) is not None
    assert not torch.equal(module.fc.weight, before)


def test_frozen_parameters_do_not_change():
    module = Plain()
    module.stem.requires_grad_(False)
    before = module.stem.weight.clone()
    Learner(module, POGM()).step(pairs())
    assert torch.equal(module.stem.weight, before)


def test_stacked_batch_and_modifier_are_accepted():
    (batch,) = batches()
    stacked = Batch(batch.x.float(), batch.y)
    metrics = Learner(Plain(), POGM(), modifiers=[Mixup()]).step(stacked)
    assert metrics["loss"].isfinite()


def test_learner_fits_the_data():
    torch.manual_seed(0)
    x = torch.randn(K, 64, INPUTS)
    y = (x @ torch.randn(INPUTS, C)).argmax(-1)
    module = Plain()
    learner = Learner(module, POGM(kappa=0.5), lr=0.01)
    for _ in range(200):
        learner.step(Batch(x, y))
    assert (module(x.flatten(0, 1)).argmax(1) == y.flatten()).float().mean() > 0.9


def test_unknown_head_is_refused():
    with pytest.raises(UsageError, match="stem, norm, fc"):
        Learner(Plain(), Fishr(), head="classifier")


def test_too_few_domains_are_refused():
    with pytest.raises(UsageError, match="at least 2 domains"):
        Learner(Plain(), MADG()).step(pairs()[:1])


def test_layers_keep_their_mode():
    """Evaluation mode is the usual way to freeze batch norm."""
    module = Plain(norm=True)
    module.norm.eval()
    before = module.norm.running_mean.clone()
    learner = Learner(module, POGM())
    learner.step(pairs())
    assert not module.norm.training
    assert torch.equal(module.norm.running_mean, before)
    module.train()
    learner.step(pairs())
    assert not torch.equal(module.norm.running_mean, before), "changes of the mode are followed"


def test_weights_can_be_loaded_between_steps():
    module, other = Plain(), Plain()
    learner = Learner(module, ERM(), lr=1e-4)
    learner.step(pairs())
    module.load_state_dict(other.state_dict())
    learner.step(pairs())
    assert (module.fc.weight - other.fc.weight).abs().max() < 1e-3


def test_head_that_is_not_the_last_layer_is_refused():
    class Odd(Plain):
        def forward(self, x):
            return 3 * torch.relu(super().forward(x))

    with pytest.raises(UsageError, match="last layer"):
        Learner(Odd(), POGM(), head="fc").step(pairs())


def test_modifier_can_change_the_network():
    seen = []

    class Recorder(Mixup):
        def network(self, network):
            seen.append(network)
            return network

    Learner(Plain(), ERM(), modifiers=[Recorder()]).step(pairs())
    assert len(seen) == 1


def test_fishr_accepts_a_frozen_bias_of_the_head():
    module = Plain()
    module.fc.bias.requires_grad_(False)
    assert Learner(module, Fishr(penalty_anneal_iters=0), head="fc").step(pairs())["loss"].isfinite()
