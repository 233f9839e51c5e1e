"""ITTA: improved test-time adaptation."""

import dataclasses
from collections import OrderedDict

import pytest
import torch
import torch.nn.functional as F
from support import assert_close, needs_gpu, no_synchronisation, trial
from torch import nn

from pogm import ERM, POGM, Fish, Learner, Mixup
from pogm._system.errors import UsageError
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.problem import Problem, live_buffers
from pogm.core.state import Purpose
from pogm.engine import checkpoint
from pogm.engine.per_domain import gradient, map_by_loop, map_by_vmap
from pogm.engine.session import Engine, Session
from pogm.engine.trainer import train
from pogm.models.featurizer import Stages
from pogm.modifiers.itta import ITTA, mismatch_gradient
from pogm.modifiers.styles import mix_styles
from pogm.modifiers.twin import TWIN

K, B, C, WIDTH, LR = 3, 4, 5, 6, 0.01
SIDE = 6


def small(norm=False):
    """Return a featurizer with two blocks; the second has negative outputs."""
    stages = OrderedDict(
        block1=nn.Sequential(nn.Conv2d(1, 4, 3, padding=1), *[nn.BatchNorm2d(4)] * norm, nn.ReLU()),
        block2=nn.Sequential(nn.Conv2d(4, WIDTH, 3, padding=1), nn.Tanh()),
        pool=nn.AdaptiveAvgPool2d(1),
        flatten=nn.Flatten(),
    )
    return Stages(stages, ("block1", "block2"))


def toy(algorithm=None, modifier=None, *, norm=False, each_domain=map_by_loop, weight_decay=0.0):
    """Return a state with a random A, and its problem, in float64."""
    algorithm, modifier = algorithm or ERM(), modifier or ITTA()
    torch.manual_seed(0)
    network = modifier.network(algorithm.build(small(norm), WIDTH, C, K)).double().train().requires_grad_(False)
    problem = Problem(
        network=network,
        optimizer=algorithm.optimizer(LR, weight_decay),
        num_domains=K,
        num_classes=C,
        gradient=gradient,
        each_domain=each_domain,
        penalties=(modifier.penalty,),
        live=live_buffers(network),
    )
    buffers = {name: leaf.clone() for name, leaf in network.named_buffers()}
    buffers[f"{TWIN}.weight"] += 0.2 * torch.randn(10, WIDTH)
    buffers[f"{TWIN}.bias"] += 0.2 * torch.rand(10, WIDTH)
    params = {name: leaf.clone() for name, leaf in network.named_parameters()}
    return algorithm.start(params, buffers, random.key(0), problem), problem


def images(seed=0, count=B):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(K, count, 1, SIDE, SIDE, generator=generator, dtype=torch.float64)
    return Batch(x * torch.arange(1, K + 1).reshape(-1, 1, 1, 1, 1), torch.randint(C, (K, count), generator=generator))


def naive_chain(weight, bias, h):
    for number, (scale, shift) in enumerate(zip(weight, bias, strict=True)):
        h = scale * (torch.relu(h) if number else h) + shift
    return h


def naive_features(params, x, key=None, alpha=0.1, maps=None):
    """Compute the blocks in a loop, with styles mixed after one of them if a key is given; return its index too."""
    first = None if key is None else bool(random.uniform(random.fold(key, 0), ()) < 0.5)
    for index, activation in enumerate((torch.relu, torch.tanh)):
        weight, bias = (params[f"features.block{index + 1}.0.{name}"] for name in ("weight", "bias"))
        x = activation(F.conv2d(x, weight, bias, padding=1))
        if maps is not None:
            x = naive_chain(maps[f"{index}.weight"], maps[f"{index}.bias"], x) + torch.where(x < 0, x, 0)
        if first is not None and first == (index == 0):
            share = random.beta(random.fold(key, 1), alpha, (len(x),))
            x = mix_styles(x, share, random.permutation(random.fold(key, 2), len(x)))
    return x.mean((2, 3)), first


def naive_losses(params, buffers, batch, key):
    """Return R and both classification losses of the pooled batch."""
    x, y = batch.x.flatten(0, 1), batch.y.flatten()
    (z, _), (twin, _) = naive_features(params, x), naive_features(params, x, key)
    consistency = naive_chain(buffers[f"{TWIN}.weight"], buffers[f"{TWIN}.bias"], twin - z).square()
    logits = [F.linear(features, params["head.weight"], params["head.bias"]) for features in (z, twin)]
    return consistency, *(F.cross_entropy(one, y, reduction="none") for one in logits)


def twin_key(state, problem, number=0):
    """Return the random key of the second branch at a step."""
    return random.fold(problem.model(state.params, state).buffers[f"{TWIN}.key"], number)


def test_penalty_is_consistency_plus_loss_of_the_second_branch():
    state, problem = toy()
    firsts = set()
    for step in range(6):
        state, batch = state._replace(step=torch.tensor(step)), images(step)
        key = twin_key(state, problem)
        consistency, plain, mixed = naive_losses(state.params, state.buffers, batch, key)
        expected = consistency.view(K, B, WIDTH).mean((1, 2)) + mixed.view(K, B).mean(1)
        model = problem.model(state.params, state)
        assert_close(ITTA().penalty(model, batch), expected)
        assert_close(model.risks(batch), expected + plain.view(K, B).mean(1))
        firsts.add(naive_features(state.params, batch.x.flatten(0, 1), key)[1])
    assert firsts == {True, False}, "styles are mixed after the first block and after the second"


def test_initial_consistency_is_the_squared_increase_of_features():
    state, problem = toy()
    own = {n: leaf for n, leaf in problem.network.named_buffers() if n.startswith(TWIN)}
    state, batch = state._replace(buffers=own), images()
    x = batch.x.flatten(0, 1)
    (z, _), (twin, _) = naive_features(state.params, x), naive_features(state.params, x, twin_key(state, problem))
    mixed = naive_losses(state.params, own, batch, twin_key(state, problem))[2]
    expected = torch.relu(twin - z).square().mean() + mixed.mean()
    torch.testing.assert_close(ITTA().penalty(problem.model(state.params, state), batch).mean(), expected)


def test_styles_are_mixed_with_the_beta_distribution():
    modifier = ITTA(alpha=3.0)
    state, problem = toy(modifier=modifier)
    x = images().x.flatten(0, 1)
    twin = problem.model(state.params, state).part(TWIN)(x)
    expected, _ = naive_features(state.params, x, twin_key(state, problem), alpha=3.0)
    assert_close(twin, expected)


def test_mismatch_gradient_equals_double_differentiation():
    state, problem = toy()
    batch = images()
    fresh = state._replace(key=state.random_key(Purpose.MODIFIER, state.step))
    params = {name: leaf.clone().requires_grad_() for name, leaf in state.params.items()}
    layers = {name: state.buffers[f"{TWIN}.{name}"].clone().requires_grad_() for name in ("weight", "bias")}
    own = [leaf for name, leaf in params.items() if name.startswith("features.")]
    buffers = {f"{TWIN}.{name}": leaf for name, leaf in layers.items()}
    consistency, plain, mixed = naive_losses(params, buffers, batch, twin_key(fresh, problem))

    def standardised(loss):
        flat = torch.cat([leaf.flatten() for leaf in torch.autograd.grad(loss, own, create_graph=True)])
        return (flat - flat.mean().detach()) / flat.std().detach()

    gap = standardised(consistency.mean()) - standardised(plain.mean() + mixed.mean()).detach()
    expected = torch.autograd.grad(0.1 * gap.square().mean(), list(layers.values()))
    found = mismatch_gradient({n: leaf.detach() for n, leaf in layers.items()}, state, batch, problem)
    assert_close(found, dict(zip(layers, expected, strict=True)), 1e-12)
    assert max(leaf.abs().max() for leaf in found.values()) > 1e-4


def test_after_a_step_only_the_consistency_is_updated():
    state, problem = toy()
    memory, after = ITTA().after(ITTA().start(state, problem), state, [images()], problem)
    assert_close(after.params, state.params, 0.0)
    slopes = mismatch_gradient({n: state.buffers[f"{TWIN}.{n}"] for n in ("weight", "bias")}, state, images(), problem)
    for name, slope in slopes.items():
        change = after.buffers[f"{TWIN}.{name}"] - state.buffers[f"{TWIN}.{name}"]
        torch.testing.assert_close(change, -0.1 * LR * slope / (slope.abs() + 1e-8), msg="Adam's first step")
    assert after.buffers[f"{TWIN}.rate"] == 0.1 * LR
    assert memory["count"] == 1


def test_consistency_is_updated_once_per_step_on_the_last_minibatch():
    state, problem = toy()
    memory = ITTA().start(state, problem)
    alone, both = (ITTA().after(memory, state, turns, problem) for turns in ([images()], [images(1), images()]))
    assert_close(both, alone, 0.0)


def test_consistency_without_gradient_does_not_change():
    """If all outputs of ReLU are zero, u is zero and cannot be standardised."""
    state, problem = toy()
    state.buffers[f"{TWIN}.weight"].zero_()
    _, after = ITTA().after(ITTA().start(state, problem), state, [images()], problem)
    for name in ("weight", "bias"):
        assert_close(after.buffers[f"{TWIN}.{name}"], state.buffers[f"{TWIN}.{name}"], 0.0)


@pytest.mark.parametrize("algorithm", [ERM(), POGM(), Fish()], ids=lambda a: type(a).__name__)
def test_algorithms_do_not_change_the_consistency(algorithm):
    state, problem = toy(algorithm, weight_decay=0.1)
    after, _ = algorithm.step(state, [images()], problem)
    for name in ("weight", "bias", "rate", "alpha"):
        assert_close(after.buffers[f"{TWIN}.{name}"], state.buffers[f"{TWIN}.{name}"], 0.0)


def test_network_keeps_names_and_outputs():
    torch.manual_seed(0)
    plain = ERM().build(small(), WIDTH, C, K)
    names, x = [name for name, _ in plain.named_parameters()], torch.randn(16, 1, SIDE, SIDE)
    expected = plain(x)
    network = ITTA().network(plain)
    assert [name for name, _ in network.named_parameters()] == names
    mixed = network(x, part=TWIN)
    assert not torch.allclose(mixed, network.features(x)), "the second branch is another"
    torch.testing.assert_close(network(x), expected, rtol=0, atol=0, msg="and leaves nothing behind")


def adapting(state, problem, **options):
    problem.network.eval()
    model = problem.model(state.params, state)
    return ITTA(**options).predictor(model, model), model


def rated(state, rate):
    return state._replace(buffers=state.buffers | {f"{TWIN}.rate": torch.tensor(rate, dtype=torch.float64)})


def test_maps_start_as_the_identity_also_for_negative_features():
    state, problem = toy()
    x = images().x[0]
    predict, model = adapting(rated(state, 0.0), problem)
    torch.testing.assert_close(predict(x), model(x), rtol=1e-12, atol=1e-12)


def without_fixed_points(state, problem, count):
    """Return the state at a step where every image of the first batches gets the style of another image.

    Where none does, R has a gradient of rounding errors, which Adam and the maps' ReLUs make larger.
    """
    for step in range(200):
        later = state._replace(step=torch.tensor(step))
        orders = [random.permutation(random.fold(twin_key(later, problem, number), 2), B) for number in range(count)]
        if all((order != torch.arange(B)).all() for order in orders):
            return later
    raise AssertionError


def naive_adaptation(state, problem, batches, weight, alpha):
    """Return the logits of batches in order, with the Adam of torch."""
    shapes = {0: (5, 4, SIDE, SIDE), 1: (5, WIDTH, SIDE, SIDE)}
    maps = {f"{p}.weight": torch.ones(s, dtype=torch.float64).requires_grad_() for p, s in shapes.items()}
    maps |= {f"{p}.bias": torch.zeros(s, dtype=torch.float64).requires_grad_() for p, s in shapes.items()}
    adam = torch.optim.Adam(maps.values(), lr=float(state.buffers[f"{TWIN}.rate"]))
    layers = state.buffers[f"{TWIN}.weight"], state.buffers[f"{TWIN}.bias"]
    logits = []
    for number, x in enumerate(batches):
        twin, _ = naive_features(state.params, x, twin_key(state, problem, number), alpha, maps)
        z, _ = naive_features(state.params, x, maps=maps)
        adam.zero_grad()
        (weight * naive_chain(*layers, twin - z).square().mean()).backward()
        adam.step()
        z, _ = naive_features(state.params, x, maps=maps)
        logits.append(F.linear(z, state.params["head.weight"], state.params["head.bias"]).detach())
    return logits


@pytest.mark.parametrize("weight", [0.1, 1e-6])
def test_maps_take_one_adam_step_before_each_prediction(weight):
    state, problem = toy(modifier=ITTA(alpha=3.0))
    state = without_fixed_points(rated(state, 0.05), problem, 3)
    batches = [images(seed).x[seed] for seed in range(3)]
    expected = naive_adaptation(state, problem, batches, weight, alpha=3.0)
    with torch.no_grad():
        predict, model = adapting(state, problem, adaptation=weight)
        found = [predict(x) for x in batches]
    assert_close(found, expected, 1e-7)
    assert (found[2] - model(batches[2])).abs().max() > 1e-3
    assert ITTA.prediction_batch_size == 64, "so many images at a time"


def test_maps_are_reset_for_each_domain():
    state, problem = toy()
    state, x = rated(state, 0.05), images().x
    predict, _ = adapting(state, problem, adaptation=0.1)
    first = predict(x[0])
    assert not torch.equal(predict(x[0]), first), "what was seen changes what follows"
    assert_close(adapting(state, problem, adaptation=0.1)[0](x[0]), first, 0.0)


def test_single_image_does_not_change_the_maps():
    state, problem = toy()
    x = images().x[0, :1]
    predict, model = adapting(rated(state, 0.05), problem)
    torch.testing.assert_close(predict(x), model(x), rtol=1e-12, atol=1e-12)


def test_without_adaptation_prediction_is_unchanged():
    state, problem = toy()
    predict, model = adapting(rated(state, 0.05), problem, adapts=False)
    assert_close(predict(images().x[0]), model(images().x[0]), 0.0)


def test_batch_norm_is_updated_in_training_but_not_by_the_consistency_update():
    state, problem = toy(norm=True)
    assert problem.live
    after, _ = ERM().step(state, [images()], problem)
    name = "features.block1.1.running_mean"
    assert not torch.equal(after.buffers[name], state.buffers[name])
    _, moved = ITTA().after(ITTA().start(after, problem), after, [images()], problem)
    assert_close(moved.buffers[name], after.buffers[name], 0.0)


def test_network_without_feature_maps_raises():
    session = trial(ERM(), modifiers=(ITTA(),))
    task = dataclasses.replace(session, training=dataclasses.replace(session.training, network="mlp")).task(None)
    with pytest.raises(UsageError, match="Choose mnist_cnn or a ResNet"):
        task.build_network()


def test_module_of_a_learner_raises():
    with pytest.raises(UsageError, match="names two or more blocks"):
        Learner(nn.Linear(3, 2), ERM(), modifiers=[ITTA()])
    module = Stages(OrderedDict(**dict(small().named_children()), fc=nn.Linear(WIDTH, C)), ("block1", "block2"))
    learner = Learner(module, ERM(), head="fc", modifiers=[ITTA()])
    with pytest.raises(UsageError, match="Train it as a trial"):
        learner.step([(torch.randn(2, 1, SIDE, SIDE), torch.zeros(2, dtype=torch.int64))] * 2)


def test_optimizer_with_several_learning_rates_raises():
    state, problem = toy()
    with pytest.raises(UsageError, match="one learning rate"):
        ITTA().start(state, dataclasses.replace(problem, optimizer=object()))


def test_head_with_other_inputs_raises():
    network = ITTA().network(ERM().build(small(), 2 * WIDTH, C, K)).double()
    state, problem = toy()
    own = {name: leaf for name, leaf in network.named_buffers() if name.startswith(TWIN)}
    model = problem.model(state.params, state._replace(buffers=own))
    with pytest.raises(UsageError, match="Choose another algorithm"):
        ITTA().penalty(model, images())


def trials(algorithm, modifiers=(), **options):
    """Return two trials that differ in everything that can differ within a batch."""
    base = trial(algorithm, precision="fp64", modifiers=(*modifiers, ITTA(adaptation=0.1)), **options)
    first = dataclasses.replace(base.training, network="mnist_cnn", batch_size=4, lr=1e-2)
    other = (*modifiers, ITTA(alpha=0.3, adaptation=0.01))
    second = {"seed": 1, "trial_seed": 1, "test_domains": (3,), "modifiers": other}
    return [
        dataclasses.replace(base, training=first),
        dataclasses.replace(base, training=dataclasses.replace(first, lr=1e-3), **second),
    ]


several = pytest.mark.parametrize(
    ("algorithm", "modifiers"),
    [(ERM(), ()), (POGM(inner_steps=2), ()), (Fish(), ()), (ERM(), (Mixup(),))],
    ids=["ERM", "POGM", "Fish", "ERM+Mixup"],
)


@several
def test_batched_trials_equal_single_trials(algorithm, modifiers):
    both = trials(algorithm, modifiers)
    together = Session([t.task(None) for t in both], Engine())
    apart = [Session([t.task(None)], Engine()) for t in both]
    for session in (together, *apart):
        for _ in range(3):
            session.step()
    for row, session in enumerate(apart):
        assert_close(trees.index(together.train_state, row), session.train_state, 1e-7)
    if algorithm == ERM() and not modifiers:  # all adapt in the same way
        assert together.accuracies() == [session.accuracies()[0] for session in apart]


def test_vmap_over_domains_equals_loop():
    problems = [toy(POGM(), each_domain=each_domain) for each_domain in (map_by_loop, map_by_vmap)]
    loop, mapped = (POGM().step(state, [images()], problem)[0] for state, problem in problems)
    assert_close(loop, mapped)


@several
def test_saved_and_loaded_run_continues_with_the_same_bits(algorithm, modifiers, tmp_path):
    task = trials(algorithm, modifiers)[0].task(None)
    whole, first, second = (Session([task], Engine()) for _ in range(3))
    for session, steps in ((whole, 4), (first, 2)):
        for _ in range(steps):
            session.step()
    checkpoint.save(tmp_path / "c", first.train_state, trial="t", after=0)
    second.train_state, _ = checkpoint.load(tmp_path / "c", second.train_state, "t")
    for _ in range(2):
        second.step()
    assert_close(second.train_state, whole.train_state, 0.0)


def test_accuracy_is_above_chance():
    """Chance is 10% on the unseen domain."""
    learner = trials(ERM(), steps=41, evaluate_every=40, test_domains=(2,))[0]
    training = dataclasses.replace(learner.training, batch_size=16)
    learner = dataclasses.replace(learner, precision="fp32", modifiers=(ITTA(),), training=training)
    session = Session([learner.task(None)], Engine())
    *_, last = train(session, learner.schedule)
    assert last.accuracies[0][2 * 2] > 0.5


@several
@pytest.mark.gpu
@needs_gpu
def test_captured_steps_equal_steps_on_the_cpu(algorithm, modifiers, narrow):
    both = trials(algorithm, modifiers)
    captured = Session([t.task(None) for t in both], Engine("cuda"))
    plain = [Session([t.task(None)], Engine("cpu")) for t in both]
    for session in (captured, *plain):
        for _ in range(5):
            session.step()
    accuracies = captured.accuracies()
    for row, session in enumerate(plain):
        one = trees.map_leaves(torch.Tensor.cpu, trees.index(captured.train_state, row))
        assert_close(one, session.train_state, 1e-6)
        assert accuracies[row] == pytest.approx(session.accuracies()[0])


@several
@pytest.mark.gpu
@needs_gpu
def test_step_does_not_synchronise(algorithm, modifiers, narrow):
    session = Session([trials(algorithm, modifiers)[0].task(None)], Engine("cuda", capture=False))
    for _ in range(2):
        session.step()
    with no_synchronisation():
        session.step()
