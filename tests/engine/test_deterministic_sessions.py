"""Deterministic sessions: repeated runs have the same bits, with every strategy of the engine."""

import hashlib
import os
import sys
import warnings
from pathlib import Path

import pytest
import torch
from support import needs_gpu, trial
from torch import nn

from pogm import ERM, POGM, Fish
from pogm._system.determinism import FIXED_WORKSPACES, WORKSPACE, deterministic_algorithms
from pogm._system.errors import UsageError
from pogm.algorithms import all_algorithms
from pogm.core import trees
from pogm.core.hyperparameters import fields
from pogm.data.transforms.randaugment import equalize
from pogm.engine import checkpoint
from pogm.engine.session import Engine, Session
from pogm.modifiers import all_modifiers
from pogm.modifiers.base import Modifier
from pogm.modifiers.cirl import CIRL
from pogm.modifiers.lpft import LPFT
from pogm.modifiers.mixstyle import MixStyle
from pogm.modifiers.sma import SMA

sys.path.append(str(Path(__file__).parents[2] / "benchmarks"))
import noise

os.environ.setdefault(WORKSPACE, FIXED_WORKSPACES[0])  # when tests are collected, before the first use of CUDA

ACTIVE = {  # options with which modifiers are active from the first steps on
    "CIRL": CIRL(warmup_steps=1, ramp_steps=2, masker_width=1, mask_percent=10),
    "LPFT": LPFT(linear_anneal_iters=2),
    "MixStyle": MixStyle(probability=1.0),
    "SMA": SMA(start_step=1),
}
METHODS = {"ERM": ERM(), "Fish": Fish(), "POGM": POGM(inner_steps=2)}
STEPS = 8


def task(algorithm, network="mlp", precision="fp32", modifiers=(), seed=0, test_domains=(0,)):
    known = trial(algorithm).training
    training = type(known)(**{**vars(known), "network": network, "batch_size": 16})
    options = {"training": training, "precision": precision, "modifiers": modifiers}
    return trial(algorithm, seed=seed, test_domains=test_domains, **options).task(None)


def task_of(algorithm, network, precision):
    """Return a task with digits for the MNIST CNN, or with larger images of noise for a residual network."""
    if network.startswith("resnet"):
        return noise.task(algorithm, shape=(3, 64, 64), network=network, precision=precision)
    return task(algorithm, network, precision)


def digest(train_state) -> str:
    """Return the SHA-256 of all numbers of a state."""
    found = hashlib.sha256()
    for name, leaf in sorted(trees.named_leaves(train_state), key=lambda pair: pair[0]):
        found.update(name.encode())
        found.update(leaf.detach().cpu().contiguous().view(-1).view(torch.uint8).numpy().tobytes())
    return found.hexdigest()


def result(engine: Engine, *tasks, steps: int = STEPS) -> list[tuple[str, list[float]]]:
    """Train, and return the digest of the state and the accuracies for every task."""
    session = Session(tasks, engine)
    for number in range(steps):
        session.step(probing=number % 2 == 0)
    accuracies = session.accuracies()
    rows = (
        [trees.index(session.train_state, row) for row in range(len(tasks))]
        if len(tasks) > 1
        else [session.train_state]
    )
    session.close()
    return [(digest(row), numbers) for row, numbers in zip(rows, accuracies, strict=True)]


class Puts(Modifier):
    """Modifier that calls an operation without a deterministic kernel on any device."""

    def batch(self, batch, key, num_classes):
        x = batch.x.clone()
        return batch._replace(x=x.put_(torch.tensor([0], device=x.device), x.flatten()[:1]))


class Pools(Modifier):
    """Modifier that adds a layer whose gradient has no deterministic kernel on a GPU."""

    def network(self, network):
        network.features = nn.Sequential(nn.Conv2d(1, 1, 1), nn.AdaptiveAvgPool2d(3), network.features)
        return network


# On a CPU.


def test_option_changes_nothing_on_a_cpu():
    for algorithm in METHODS.values():
        assert result(Engine(deterministic=True), task(algorithm)) == result(Engine(), task(algorithm))
    assert not torch.are_deterministic_algorithms_enabled()


def test_refused_operation_is_named_in_a_usage_error():
    session = Session([task(ERM(), modifiers=(Puts(),))], Engine(deterministic=True))
    with deterministic_algorithms(), pytest.raises(UsageError) as caught:
        session.step()
    text = str(caught.value)
    for part in ("put_", "ERM", "the network mlp", "the modifier Puts", "leave --deterministic out"):
        assert part in text


def test_other_errors_are_not_converted():
    class Fails(Modifier):
        def batch(self, batch, key, num_classes):
            raise RuntimeError("something else")

    session = Session([task(ERM(), modifiers=(Fails(),))], Engine(deterministic=True))
    with pytest.raises(RuntimeError, match="something else"):
        session.step()


def test_trial_has_the_same_bits_in_a_batch_and_alone():
    for algorithm in METHODS.values():
        tasks = [task(algorithm, seed=seed, test_domains=(seed,)) for seed in range(3)]
        engine = Engine(deterministic=True)
        batch = result(engine, *tasks)
        assert batch == [found for one in tasks for found in result(engine, one)]


# On a GPU.

strategies = pytest.mark.parametrize(
    "strategy",
    [
        pytest.param({"capture": False}, id="eager"),
        pytest.param({}, id="captured"),
        pytest.param({"capture": False, "compile": "on"}, id="compiled"),
        pytest.param({"compile": "on"}, id="captured-compiled"),
        pytest.param({"domains": "streams"}, id="streams"),
        pytest.param({"domains": "streams", "compile": "on"}, id="streams-compiled"),
    ],
)
networks = pytest.mark.parametrize(("network", "precision"), [("mnist_cnn", "fp32"), ("resnet18", "bf16")])


def on_gpu(**options) -> Engine:
    return Engine("cuda", deterministic=True, **options)


@pytest.mark.gpu
@needs_gpu
@strategies
@networks
@pytest.mark.parametrize("method", METHODS)
def test_repeated_sessions_have_the_same_bits(method, network, precision, strategy):
    engine, one = on_gpu(**strategy), task_of(METHODS[method], network, precision)
    first = result(engine, one)
    if engine.compile == "on":
        torch._dynamo.reset()  # compile again, as in another process
    assert result(engine, one) == first


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", all_algorithms())
def test_every_algorithm_is_deterministic(name):
    cls = all_algorithms()[name]
    early = {field.name: 2 for field in fields(cls) if field.name.endswith("anneal_iters")}  # all parts of the loss
    one = task(cls(**early), "mnist_cnn")
    assert result(on_gpu(), one) == result(on_gpu(), one)


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("name", all_modifiers())
def test_every_modifier_is_deterministic(name):
    one = task(ERM(), "mnist_cnn", modifiers=(ACTIVE.get(name) or all_modifiers()[name](),))
    assert result(on_gpu(), one) == result(on_gpu(), one)


@pytest.mark.gpu
@needs_gpu
def test_histogram_of_randaugment_can_be_captured():
    """Torch counts by sorting in deterministic mode. The captured result has the bits of the eager one."""
    images = torch.randint(256, (4, 3, 65, 65)).float() / 255
    on_gpu_images = images.cuda()
    with deterministic_algorithms():
        direct = equalize(on_gpu_images)
        torch.cuda.synchronize()
        graph = torch.cuda.CUDAGraph()
        with torch.cuda.graph(graph):
            found = equalize(on_gpu_images)
        graph.replay()
    assert torch.equal(found, direct)
    # A GPU multiplies by 1/255 and a CPU divides by 255, so the last bit may differ, but not the bytes.
    assert torch.equal((found.cpu() * 255).round(), (equalize(images) * 255).round())


@pytest.mark.gpu
@needs_gpu
@networks
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("compile", ["off", "on"])
def test_resumed_session_has_the_same_bits(tmp_path, method, network, precision, compile):
    engine, one = on_gpu(compile=compile), task_of(METHODS[method], network, precision)
    uninterrupted, half = (Session([one], engine) for _ in range(2))
    for _ in range(STEPS):
        uninterrupted.step()
    for _ in range(STEPS // 2):
        half.step()
    checkpoint.save(tmp_path, half.gather_state(), trial="t", after=-1)
    later = Session([one], engine)
    found = checkpoint.load(tmp_path, later.state_template(), "t")
    assert found is not None
    later.restore(found[0])
    for _ in range(STEPS - STEPS // 2):
        later.step()
    assert digest(later.train_state) == digest(uninterrupted.train_state)
    assert later.accuracies() == uninterrupted.accuracies()


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("network", ["mlp", "mnist_cnn"])
@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("compile", ["off", "on"])
def test_trial_has_the_same_bits_in_a_batch_and_alone_on_a_gpu(method, network, compile):
    """The alignment of a trial's weights in the memory of a batch must not change the choice of kernels."""
    engine = on_gpu(compile=compile)
    tasks = [task(METHODS[method], network, seed=seed, test_domains=(seed,)) for seed in range(3)]
    batch = result(engine, *tasks)
    assert batch == result(engine, *tasks)
    assert batch == [found for one in tasks for found in result(engine, one)]


@pytest.mark.gpu
@needs_gpu
def test_compiler_does_not_warn_on_a_gpu():
    """Inductor warns once in a process that TF32 is off, while it compiles the first backward pass."""
    import torch._dynamo

    with warnings.catch_warnings(action="ignore"):  # torch's own, about its imports
        from torch._inductor import compile_fx
        from torch._inductor.utils import fresh_cache

    compile_fx._warn_tf32_disabled.cache_clear()
    torch._dynamo.reset()  # else earlier tests may have compiled it
    with fresh_cache():
        result(Engine("cuda", compile="on", capture=False), task(ERM(), "mlp"), steps=1)  # warnings are errors here


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("strategy", [{"capture": False}, {}, {"compile": "on"}], ids=["eager", "captured", "compiled"])
def test_layer_without_a_deterministic_gradient_is_refused_in_the_first_step(strategy):
    session = Session([task(ERM(), "mnist_cnn", modifiers=(Pools(),))], on_gpu(**strategy))
    with pytest.raises(UsageError, match=r"adaptive_avg_pool2d_backward.*the modifier Pools"):
        session.step()
    plain = Session([task(ERM(), "mnist_cnn", modifiers=(Pools(),))], Engine("cuda", **strategy))
    plain.step()  # allowed without the option
    assert not torch.are_deterministic_algorithms_enabled()


@pytest.mark.gpu
@needs_gpu
def test_sessions_with_and_without_the_option_can_alternate():
    one = task(ERM(), "mnist_cnn")
    deterministic, other = Session([one], on_gpu()), Session([one], Engine("cuda"))
    for _ in range(STEPS):
        deterministic.step()
        assert not torch.are_deterministic_algorithms_enabled()
        other.step()
    assert digest(deterministic.train_state) == digest_of_single(one)


def digest_of_single(one) -> str:
    session = Session([one], on_gpu())
    for _ in range(STEPS):
        session.step()
    return digest(session.train_state)
