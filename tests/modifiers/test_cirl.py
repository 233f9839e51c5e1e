"""CIRL: twins, masks, correlations and the update of the masker."""

import dataclasses
import math

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from promises import (
    accuracy,
    assert_batched_equals_single,
    assert_captured_equals_the_host,
    assert_domains_by_vmap_equal_a_loop,
    assert_resumes,
    modified,
    session,
)
from support import assert_close, needs_gpu
from torch import nn
from torch.func import grad

from pogm import ERM, POGM, Fish, Fishr, Learner, Mixup, pareto
from pogm._system.errors import UsageError
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.model import Network
from pogm.data.transforms.photographs import DEVIATION, MEAN
from pogm.modifiers.cirl import CIRL, Masker, factorization_loss, mix_amplitudes

QUICK = CIRL(warmup_steps=1, ramp_steps=3, masker_width=1, mask_percent=10)


def draw(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def images(domains=3, size=4, shape=(2, 7, 8), seed=0):
    labels = torch.randint(4, (domains, size), generator=torch.Generator().manual_seed(seed))
    return Batch(draw(domains, size, *shape, seed=seed), labels)


@pytest.fixture
def begun():
    """Return a session after one step, and a minibatch with its twins."""
    made = session(modified(ERM(), dataclasses.replace(QUICK, warmup_steps=0), network="mlp"))
    made.step()
    batch = images(domains=made.config.problem.num_domains, shape=(1, 8, 8))
    return made, QUICK.batch(batch, random.key(3), 10)


# Twins.


def test_twin_has_phases_of_its_image_and_mixed_amplitudes():
    pair, share = draw(2, 3, 7, 8), draw(3, 1, 1, 1, seed=2)
    found = mix_amplitudes(*pair.unsqueeze(2), share)
    for n in range(3):
        own, other = (np.fft.fft2(half[n].numpy()) for half in pair)
        amplitude = share[n].item() * np.abs(other) + (1 - share[n].item()) * np.abs(own)
        expected = np.fft.ifft2(amplitude * np.exp(1j * np.angle(own)))
        assert np.abs(expected.imag).max() < 1e-12
        np.testing.assert_allclose(found[n, 0].numpy(), expected.real, atol=1e-12)


def test_share_of_zero_is_the_identity():
    pair = draw(2, 3, 2, 9, 9)
    torch.testing.assert_close(mix_amplitudes(*pair, torch.zeros(3, 1, 1, 1).double()), pair[0])


def test_batch_has_images_first_and_twins_second():
    batch = images()
    after = QUICK.batch(batch, random.key(0), 4)
    assert after.x.shape == (3, 8, 2, 7, 8)
    assert torch.equal(after.x[:, :4], batch.x)
    assert torch.equal(after.y, torch.cat([batch.y, batch.y], 1))
    order = random.permutation(random.fold(random.key(0), 0), 12)
    share = random.uniform(random.fold(random.key(0), 1), (12, 1, 1, 1))
    pooled = batch.x.flatten(0, 1)
    expected = mix_amplitudes(pooled, pooled[order], share).clamp(0, 1).view_as(batch.x)
    torch.testing.assert_close(after.x[:, 4:], expected)
    assert (order // 4 != torch.arange(12) // 4).any(), "partners of other domains"


def test_twins_of_photographs_are_mixed_as_pixels():
    mean, deviation = (torch.tensor(part, dtype=torch.float64).view(3, 1, 1) for part in (MEAN, DEVIATION))
    batch = images(shape=(3, 65, 65), size=2)
    normalised = batch._replace(x=(batch.x - mean) / deviation)
    twins = QUICK.batch(normalised, random.key(0), 4).x[:, 2:] * deviation + mean
    pooled = batch.x.flatten(0, 1)
    order = random.permutation(random.fold(random.key(0), 0), 6)
    share = random.uniform(random.fold(random.key(0), 1), (6, 1, 1, 1))
    mixed = mix_amplitudes(pooled, pooled[order], share).clamp(0, 1).view_as(batch.x)
    torch.testing.assert_close(twins, mixed)


def test_labels_can_be_probabilities():
    mixed = Mixup().batch(images(), random.key(0), 4)
    assert QUICK.batch(mixed, random.key(1), 4).y.shape == (3, 8, 4)


# Masks.


def test_mask_is_the_maximum_over_a_chain_of_gumbel_softmaxes():
    torch.manual_seed(0)
    masker = Masker(5, 7, 3).double()
    masker.key = random.key(1)
    for index in (0, 1):
        masker.get_buffer(f"scale{index}").uniform_(0.5, 2)
        masker.get_buffer(f"shift{index}").uniform_(-1, 1)
    z = draw(6, 5)
    h = z
    for index in (0, 1):
        kept = random.uniform(random.fold(masker.key, index), tuple(h.shape)) >= 0.5
        h = (2 * h * kept) @ masker.get_buffer(f"weight{index}").T
        h = (h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt()
        h = (h * masker.get_buffer(f"scale{index}") + masker.get_buffer(f"shift{index}")).clamp(min=0)
    h = h @ masker.weight2.T
    logits = (h - h.mean(0)) / (h.var(0, correction=0) + 1e-5).sqrt()
    choices = []
    for number in range(3):
        uniform = 1 - random.uniform(random.fold(masker.key, 2 + number), (6, 5))
        gumbel = -torch.log(-torch.log(uniform))
        logits = ((logits + gumbel) / 0.5).exp()
        logits = logits / logits.sum(1, keepdim=True)
        choices.append(logits)
    torch.testing.assert_close(masker(z), torch.stack(choices).amax(0))


def test_sum_of_a_mask_is_at_most_the_length_of_the_chain():
    z = draw(6, 20)
    torch.testing.assert_close(Masker(20, 20, 1).double()(z).sum(1), torch.ones(6).double())
    mask = Masker(20, 20, 12).double()(z)
    assert ((mask >= 0) & (mask <= 1)).all()
    assert (mask.sum(1) <= 12).all()
    assert (mask.sum(1) > 4).all(), "they do not all fall on the same features"


@pytest.mark.parametrize(("width", "choices"), [(128, 77), (512, 308), (2048, 1229)])
def test_length_of_the_chain_is_sixty_percent_of_the_features(width, choices):
    network = Network(nn.Identity(), nn.Linear(width, 3))
    with torch.device("meta"):  # a hundred million weights
        assert CIRL().network(network).masker.choices == choices


# The risk.


def naive_factorization(a, b):
    count, width = a.shape
    total_like = total_unlike = 0.0
    for i in range(width):
        for j in range(width):
            left = (a[:, i] - a[:, i].mean()) / (a[:, i].std() + 1e-6)
            right = (b[:, j] - b[:, j].mean()) / (b[:, j].std() + 1e-6)
            c = float((left * right).sum() / count)
            if i == j:
                total_like += (c - 1) ** 2
            else:
                total_unlike += c**2
    return total_like / width + 0.005 * total_unlike / (width * (width - 1))


def test_factorization_loss_matches_the_equation():
    a, b = draw(9, 4), draw(9, 4, seed=1)
    assert float(factorization_loss(a, b)) == pytest.approx(naive_factorization(a, b), rel=1e-9)


def test_factorization_loss_of_equal_and_opposite_twins():
    z = torch.tensor([[1.0, 1], [1, -1], [-1, 1], [-1, -1]] * 250, dtype=torch.float64)
    assert float(factorization_loss(z, z)) < 1e-5
    assert float(factorization_loss(z, -z)) == pytest.approx(4.0, abs=0.01)


def test_constant_feature_has_a_finite_gradient():
    z = draw(6, 3)
    z[:, 0] = 0
    (slope,) = torch.autograd.grad(factorization_loss(z.requires_grad_(), draw(6, 3, seed=1)), z)
    assert slope.isfinite().all()


def test_second_derivative_is_finite_and_correct():
    """IDGM uses second derivatives; a feature that is zero after a ReLU has standard deviation 0."""
    z, w = draw(6, 3), draw(6, 3, seed=1)
    z[:, 0] = 0

    def steepness(z):
        return grad(lambda z: factorization_loss(z, w))(z)[:, 1:].square().sum()

    found = grad(steepness)(z)
    assert found.isfinite().all()
    along = draw(6, 3, seed=2) * torch.tensor([0.0, 1.0, 1.0])
    expected = (steepness(z + 1e-5 * along) - steepness(z - 1e-5 * along)) / 2e-5
    torch.testing.assert_close((found * along).sum(), expected, rtol=1e-6, atol=0)


def parts(begun, masked=True):
    """Return the features of a minibatch with twins, and the losses of both heads [K]."""
    made, batch = begun
    state = made.train_state.state
    model = made.config.problem.model(state.params, state)
    z = model.features(batch.x.flatten(0, 1))
    mask = model.part("masker")(z) if masked else torch.ones_like(z)
    rest = 1 - mask if masked else mask
    y = batch.y.flatten()
    head = F.linear(z * mask, state.params["head.weight"], state.params["head.bias"])
    adversary = F.linear(z * rest, state.params["adversary.weight"], state.params["adversary.bias"])
    losses = [F.cross_entropy(o, y, reduction="none").view(batch.y.shape).mean(1) for o in (head, adversary)]
    return model, z.view(*batch.y.shape, -1), losses


@pytest.mark.parametrize("step", [0, 1, 2, 3, 100])
def test_risk_is_that_of_both_heads_plus_factorization(begun, step):
    made, batch = begun
    state = made.train_state.state
    state = state._replace(buffers=state.buffers | {"masker.seen": torch.tensor(step)})
    made.train_state = made.train_state._replace(state=state)
    cirl = dataclasses.replace(QUICK, warmup_steps=2, ramp_steps=3, weight=5.0)
    model, z, (head, adversary) = parts((made, batch), masked=step >= 2)
    weight = 5 * math.exp(-5 * (1 - min(step, 3) / 3) ** 2)
    correlations = naive_factorization(z[:, :4].flatten(0, 1)[:, :9], z[:, 4:].flatten(0, 1)[:, :9])
    found = factorization_loss(z[:, :4].flatten(0, 1)[:, :9], z[:, 4:].flatten(0, 1)[:, :9])
    assert float(found) == pytest.approx(correlations, rel=1e-9)
    whole = factorization_loss(z[:, :4].flatten(0, 1), z[:, 4:].flatten(0, 1))
    torch.testing.assert_close(cirl.risks(model, batch), head / 2 + adversary / 2 + weight * whole)


def test_gradient_treats_masks_as_constants(begun):
    made, batch = begun
    state, problem = made.train_state.state, made.config.problem
    model = problem.model(state.params, state)
    mask = model.part("masker")(model.features(batch.x.flatten(0, 1)))

    def naive(params):
        z = problem.model(params, state).features(batch.x.flatten(0, 1))
        head = F.linear(z * mask, params["head.weight"], params["head.bias"])
        adversary = F.linear(z * (1 - mask), params["adversary.weight"], params["adversary.bias"])
        losses = [F.cross_entropy(logits, batch.y.flatten()) / 2 for logits in (head, adversary)]
        first, second = (half.flatten(0, 1) for half in z.view(*batch.y.shape, -1).chunk(2, 1))
        return sum(losses) + 5 * math.exp(-5 * (1 - 1 / 3) ** 2) * factorization_loss(first, second)

    found = grad(lambda params: QUICK.risks(problem.model(params, state), batch).mean())(state.params)
    assert_close(found, grad(naive)(state.params))


def test_prediction_uses_neither_mask_nor_adversary(begun):
    made, batch = begun
    state = made.train_state.state
    model = made.config.problem.model(state.params, state)
    x = batch.x[0]
    expected = model.head(model.features(x))
    assert torch.equal(made.config.predictor(model)(x), expected)


# The masker's step.


def test_algorithm_trains_both_heads_but_not_the_masker(begun):
    """This holds with weight decay too."""
    made, batch = begun
    state, problem = made.train_state.state, made.config.problem
    assert problem.optimizer.weight_decay > 0
    with torch.no_grad():
        after, _ = ERM().step(state, [batch], problem)
    for name in ("head.weight", "adversary.weight", "features.1.weight"):
        assert not torch.equal(after.params[name], state.params[name])
    assert not any("masker" in name for name in state.params)
    assert_close(after.buffers, state.buffers, 0.0)


def test_masker_takes_an_adam_step_with_ten_times_the_learning_rate(begun):
    made, batch = begun
    state, problem = made.train_state.state, made.config.problem
    memory = QUICK.start(state, problem)
    with torch.no_grad():
        _, after = QUICK.after(memory, state, [batch], problem)

    apart = state._replace(key=random.fold(state.key, -1))
    names = [f"masker.{name}" for name in Masker.trained]
    leaves = [state.buffers[name].clone().requires_grad_() for name in names]
    rates = {"lr": 10 * problem.optimizer.lr, "weight_decay": problem.optimizer.weight_decay}
    adam = torch.optim.Adam(leaves, **rates)
    made.train_state = made.train_state._replace(
        state=apart._replace(buffers=state.buffers | dict(zip(names, leaves, strict=True)))
    )
    _, _, (head, adversary) = parts((made, batch))
    (head.mean() / 2 - adversary.mean() / 2).backward()
    adam.step()
    for name, leaf in zip(names, leaves, strict=True):
        torch.testing.assert_close(after.buffers[name], leaf.detach(), rtol=1e-6, atol=1e-8)
    rest = {name: leaf for name, leaf in state.buffers.items() if name not in names}
    assert_close({name: after.buffers[name] for name in rest}, rest | {"masker.seen": torch.tensor(2)}, 0.0)
    assert_close(after._replace(buffers={}), state._replace(buffers={}), 0.0)


def test_masker_is_updated_once_per_step_on_the_last_minibatch(begun):
    made, batch = begun
    state, problem = made.train_state.state, made.config.problem
    other, memory = batch._replace(x=batch.x.flip(1)), QUICK.start(state, problem)
    with torch.no_grad():
        alone, both = (QUICK.after(memory, state, turns, problem)[1] for turns in ([batch], [other, batch]))
    assert_close(both.buffers["masker.weight2"], alone.buffers["masker.weight2"], 0.0)


def test_masker_decreases_head_loss_relative_to_adversary_loss(begun):
    made, batch = begun
    state, problem = made.train_state.state, made.config.problem

    def advantage(state):
        made.train_state = made.train_state._replace(state=state._replace(key=random.fold(state.key, -1)))
        head, adversary = parts((made, batch))[2]
        return float((head - adversary).mean())

    memory, moved = QUICK.start(state, problem), state
    for _ in range(15):
        with torch.no_grad():
            memory, moved = QUICK.after(memory, moved, [batch], problem)
    assert advantage(moved) < advantage(state)


def test_schedule_counts_minibatches():
    made = session(modified(POGM(inner_steps=3), QUICK, network="mlp"))
    for round_ in range(3):
        assert made.train_state.state.buffers["masker.seen"] == 3 * round_
        made.step()


def test_pogm_moves_the_adversary_with_the_weights_of_features_and_head(begun):
    made, batch = begun
    pogm = POGM(centre="mean")
    state = made.train_state.state
    state = pogm.start(state.params, state.buffers, state.key, made.config.problem)
    with torch.no_grad():
        after, _ = pogm.step(state, [batch], made.config.problem)
        rows = pogm.copies(state, [batch], made.config.problem).trajectories
    weights = pareto.invariant_weights(
        pareto.gramian({name: leaf for name, leaf in rows.items() if not name.startswith("adversary.")}), pogm.kappa
    )
    assert_close(after.params, trees.move(state.params, trees.combine(weights, rows), 1.0))
    assert rows["adversary.weight"].any()
    everything = pareto.invariant_weights(pareto.gramian(rows), pogm.kappa)
    assert not torch.allclose(weights, everything), "it would make a difference"


def test_pogm_shares_one_masker():
    made = session(modified(POGM(), QUICK, network="mlp"))
    before = made.train_state.state
    made.step()
    after = made.train_state.state
    assert after.memory["skipped"] == 0
    assert not torch.equal(after.params["adversary.weight"], before.params["adversary.weight"])
    assert after.buffers["masker.weight0"].shape == before.buffers["masker.weight0"].shape
    assert not torch.equal(after.buffers["masker.weight0"], before.buffers["masker.weight0"])


# With the others.


@pytest.mark.parametrize("algorithm", [ERM(), POGM(), Fish()], ids=lambda a: type(a).__name__)
def test_batched_trials_equal_single_trials(algorithm):
    assert_batched_equals_single(algorithm, QUICK, Mixup(), network="mlp", evaluated=True)


def test_trials_with_different_weights_can_be_batched():
    assert_batched_equals_single(ERM(), QUICK, network="mlp")


def test_vmap_over_domains_equals_loop():
    assert_domains_by_vmap_equal_a_loop(POGM(inner_steps=2), QUICK, network="mlp")


def test_saved_and_loaded_run_continues_with_the_same_bits():
    assert_resumes(Fish(), QUICK, Mixup(), network="mlp")


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("algorithm", [ERM(), POGM()], ids=lambda a: type(a).__name__)
def test_captured_steps_equal_steps_on_the_cpu(algorithm):
    assert_captured_equals_the_host(algorithm, QUICK, network="mlp")


def test_accuracy_is_above_chance():
    eager = dataclasses.replace(QUICK, warmup_steps=10, ramp_steps=20, mask_percent=30)
    assert accuracy(ERM(), eager, network="mlp", batch_size=16) > 0.5


def test_adversary_and_head_have_different_initial_weights():
    state = session(modified(ERM(), QUICK, network="mlp")).train_state.state
    assert state.params["adversary.weight"].shape == state.params["head.weight"].shape
    assert not torch.equal(state.params["adversary.weight"], state.params["head.weight"])
    assert all(leaf.isfinite().all() for leaf in trees.leaves(state.buffers))


def test_unsupported_settings_raise():
    with pytest.raises(UsageError, match="images"):
        QUICK.batch(Batch(torch.zeros(2, 3, 4), torch.zeros(2, 3)), random.key(0), 4)
    with pytest.raises(UsageError, match="larger batch_size"):
        factorization_loss(torch.zeros(1, 3), torch.zeros(1, 3))
    with pytest.raises(UsageError, match="found Identity"):
        Learner(nn.Linear(2, 2), ERM(), modifiers=[QUICK])
    with pytest.raises(UsageError, match="replaces the risks"):
        session(modified(Fishr(), QUICK, network="mlp")).step()
    module = nn.Sequential(nn.Flatten(), nn.Linear(64, 8), nn.Linear(8, 3))
    learner = Learner(module, ERM(), head="2", modifiers=[QUICK])
    with pytest.raises(UsageError, match="pogm run"):
        learner.step([(torch.rand(4, 1, 8, 8), torch.zeros(4, dtype=torch.int64))])
