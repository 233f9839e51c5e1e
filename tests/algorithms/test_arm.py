"""ARM."""

import dataclasses

import pytest
import torch
from support import WIDTH, C, K, batches, toy, trial
from torch import nn

from pogm._system.errors import UsageError
from pogm.algorithms.arm import ARM, Context
from pogm.algorithms.erm import ERM
from pogm.core.batch import Batch
from pogm.core.model import evaluation_mode
from pogm.engine.session import Engine, Session
from pogm.learner import Learner

SHAPE = (2, 4, 4)
SIZE = 6


@dataclasses.dataclass(frozen=True)
class OnImages(ARM):
    """ARM that always uses a network for small images."""

    def build(self, _features, width, num_classes, num_domains):
        def make(shape):
            channels, height, width = shape
            return nn.Sequential(nn.Flatten(), nn.Linear(channels * height * width, WIDTH), nn.Tanh()), WIDTH

        features, width = self.featurizer(make, SHAPE)
        return super().build(features, width, num_classes, num_domains)


def images(domains=K, seed=0):
    generator = torch.Generator().manual_seed(seed)
    x = torch.randn(domains, SIZE, *SHAPE, generator=generator, dtype=torch.float64)
    return Batch(x, torch.randint(C, (domains, SIZE), generator=generator))


def naive_maps(params, x, stats=None):
    """Compute the context network without modules; ``stats`` are running statistics of batch norm, if used."""
    for index in (0, 3):
        name = f"features.context.maps.{index}"
        norm = f"features.context.maps.{index + 1}"
        x = nn.functional.conv2d(x, params[f"{name}.weight"], params[f"{name}.bias"], padding=2)
        mean = x.mean((0, 2, 3)) if stats is None else stats[f"{norm}.running_mean"]
        var = x.var((0, 2, 3), correction=0) if stats is None else stats[f"{norm}.running_var"]
        x = (x - mean[:, None, None]) / (var[:, None, None] + 1e-5).sqrt()
        x = (x * params[f"{norm}.weight"][:, None, None] + params[f"{norm}.bias"][:, None, None]).relu()
    name = "features.context.maps.6"
    return nn.functional.conv2d(x, params[f"{name}.weight"], params[f"{name}.bias"], padding=2)


def naive_logits(params, x, context):
    """Compute the main network without modules, on images of one group."""
    seen = torch.stack([torch.cat([image, context]) for image in x]).flatten(1)
    z = torch.tanh(seen @ params["features.1.weight"].T + params["features.1.bias"])
    return z @ params["head.weight"].T + params["head.bias"]


@pytest.mark.parametrize("domains", [1, K])
def test_loss_and_gradient_match_the_equation(domains):
    """Batch norm uses all domains; a context is the mean over one domain."""
    arm = OnImages()
    state, problem = toy(arm, domains=domains)
    batch = images(domains)
    leaves = {name: leaf.clone().requires_grad_() for name, leaf in state.params.items()}
    maps = naive_maps(leaves, batch.x.flatten(0, 1)).view(domains, SIZE, 1, *SHAPE[1:])
    logits = [naive_logits(leaves, batch.x[k], maps[k].mean(0)) for k in range(domains)]
    expected = nn.functional.cross_entropy(torch.cat(logits), batch.y.flatten())
    slopes = torch.autograd.grad(expected, list(leaves.values()))

    gradient, loss = arm.gradient(state, batch, problem)
    torch.testing.assert_close(loss.value, expected.detach())
    torch.testing.assert_close(list(gradient.values()), list(slopes), rtol=1e-6, atol=1e-10)


@pytest.mark.parametrize(("support", "groups"), [(2, [2, 2, 2]), (3, [3, 3]), (6, [6]), (4, [6]), (64, [6])])
def test_prediction_uses_the_context_of_its_group(support, groups):
    """Groups have the support size if it divides the number of images; otherwise there is one group."""
    arm = OnImages(support_size=support)
    state, problem = toy(arm)
    state, _ = arm.step(state, [images()], problem)
    x = images(seed=1).x[0]
    with evaluation_mode(problem.network):
        found = arm.predict(problem.model(state.params, state), x)
    maps = naive_maps(state.params, x, state.buffers)
    parts = zip(x.split(groups), maps.split(groups), strict=True)
    torch.testing.assert_close(found, torch.cat([naive_logits(state.params, a, m.mean(0)) for a, m in parts]))


def test_domains_do_not_share_contexts():
    arm = OnImages()
    state, problem = toy(arm)
    batch = images()
    with evaluation_mode(problem.network):  # in training, batch norm sees them all
        model = problem.model(state.params, state)
        together = model(batch.x)
        apart = torch.cat([model(x) for x in batch.x])
        mixed = model(batch.x.flatten(0, 1))
    torch.testing.assert_close(together, apart)
    assert not torch.allclose(together, mixed)


def test_batch_norm_of_the_context_network_is_updated():
    arm = OnImages()
    state, problem = toy(arm)
    batch = images()
    after, _ = arm.step(state, [batch], problem)
    first = {name: state.params[f"features.context.maps.0.{name}"] for name in ("weight", "bias")}
    seen = nn.functional.conv2d(batch.x.flatten(0, 1), first["weight"], first["bias"], padding=2)
    found = after.buffers["features.context.maps.1.running_mean"]
    torch.testing.assert_close(found, 0.1 * seen.mean((0, 2, 3)))


@pytest.mark.parametrize("trained", [True, False])
def test_context_network_is_trained_only_with_train_context(trained):
    """Without training, weight decay does not change the context network either."""
    arm = OnImages(train_context=trained)
    state, problem = toy(arm, weight_decay=0.1)
    after, _ = arm.step(state, [images()], problem)
    other, _ = OnImages().step(state, [images()], problem)
    for name, leaf in state.params.items():
        if name.startswith("features.context."):
            assert torch.equal(after.params[name], leaf) != trained, name
        else:
            assert torch.equal(after.params[name], other.params[name])
            assert not torch.equal(other.params[name], leaf)


@pytest.mark.parametrize("network", ["mlp", "mnist_cnn"])
def test_trial_has_a_context_stage_before_the_network(network):
    """The stages of the network keep their names."""
    plain, with_context = (
        dataclasses.replace(run, training=dataclasses.replace(run.training, network=network)).task(None).build_network()
        for run in (trial(ERM()), trial(ARM()))
    )
    names = [name for name, _ in with_context.features.named_children()]
    assert names == ["context", *(name for name, _ in plain.features.named_children())]
    first, *_ = (leaf for name, leaf in with_context.named_parameters() if not name.startswith("features.context."))
    usual = next(iter(plain.parameters()))
    assert first.shape[1] == usual.shape[1] * 2, "one channel became two"


@pytest.mark.parametrize("shape", [(6,), (3, 8)])
def test_context_of_vectors_and_series_is_that_of_images_with_larger_kernels(shape):
    """The other weights of a 5 × 5 kernel see only padding."""
    small, large = Context(shape), Context((*shape, *[1] * (3 - len(shape))))
    kernels = {"maps.0.weight", "maps.3.weight", "maps.6.weight"}
    for name, leaf in small.state_dict().items():
        if name in kernels:
            height, width = leaf.shape[2:]
            target = large.state_dict()[name].zero_()
            target[:, :, 2 - height // 2 : 3 + height // 2, 2 - width // 2 : 3 + width // 2] = leaf
        else:
            large.state_dict()[name].copy_(leaf)
    x = torch.randn(2, 7, *shape)
    torch.testing.assert_close(small(x), large(x.view(*x.shape, *[1] * (3 - len(shape)))).view(small(x).shape))
    assert sum(map(torch.numel, small.parameters())) < sum(map(torch.numel, large.parameters())) / 4


def test_session_predicts():
    session = Session([trial(ARM(support_size=8)).task(None)], Engine())
    session.step()
    assert all(0 <= share <= 1 for share in session.accuracies()[0])


def test_module_of_a_learner_raises():
    module = nn.Sequential(nn.Linear(6, 5), nn.Tanh(), nn.Linear(5, 4))
    learner = Learner(module.double(), ARM(), head="2")
    with pytest.raises(UsageError, match="context network"):
        learner.step(batches()[0])


def test_featurizer_without_stages_raises():
    with pytest.raises(UsageError, match="found Linear"):
        ARM().featurizer(lambda shape: (nn.Linear(shape[0], 2), 2), SHAPE)
