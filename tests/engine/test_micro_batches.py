"""Micro-batches: the same results up to rounding, with less memory; refused for networks that couple samples."""

import dataclasses

import pytest
import torch
from support import assert_close, batches, needs_gpu, toy, trial
from torch import nn
from torch.multiprocessing.reductions import StorageWeakRef
from torch.utils._python_dispatch import TorchDispatchMode

from pogm import CORAL, ERM, POGM, Fish, MixStyle
from pogm._system.errors import UsageError
from pogm.algorithms import all_algorithms
from pogm.benchmark.runs.provenance import read_provenance
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.cli import parse
from pogm.cli.execution import make_run_options
from pogm.core import trees
from pogm.core.batch import Batch
from pogm.core.micro_batches import MicroBatches
from pogm.core.model import Model, Network
from pogm.core.random_layers import Dropout
from pogm.core.state import Loss
from pogm.diagnostics import Probe
from pogm.engine.engine import Engine
from pogm.engine.per_domain import gradient
from pogm.engine.session import Session
from pogm.testing.problems import save_and_load, start_schedules

REFUSED = {
    "ARM": "the batch norm features.context",  # its context network
    "MADG": "the batch norm head.bottleneck",
    "SelfReg": "the batch norm projection",
    "IDGM": "torch.func.grad",  # this and the next: second derivatives of the network
    "IGA": "torch.func.grad",
}
METHODS = {
    "ERM": ERM(),
    "POGM": POGM(),
    "POGM, E = 2": POGM(inner_steps=2),
    "POGM, mean as centre": POGM(centre="mean"),
    "POGM, mean as centre, E = 2": POGM(centre="mean", inner_steps=2),
    "Fish": Fish(),
    "CORAL": CORAL(),
}


def small(algorithm=ERM(), training=None, **options):  # noqa: B008  (frozen)
    """Return a trial in float64 with a convolutional network and minibatches of 4 samples."""
    changes = {"network": "small_cnn", "batch_size": 4, **(training or {})}
    training = dataclasses.replace(trial(algorithm).training, **changes)
    return trial(algorithm, training=training, **{"precision": "fp64", "test_domains": (0, 1, 2)} | options)


def session(*trials, steps=5, **engine):
    made = Session([one.task(None) for one in trials], Engine(**engine))
    for number in range(steps):
        made.step(probing=number % 2 == 0)
    return made


@pytest.mark.parametrize("name", all_algorithms())
def test_every_algorithm_gives_the_same_result_or_is_refused(name):
    """Three samples do not divide the minibatch."""
    algorithm = start_schedules(all_algorithms()[name], at=1)
    ends = []
    for size in (None, 3):
        state, problem = toy(algorithm)
        for number in range(2):
            made = batches(algorithm.minibatches, seed=number)
            with torch.no_grad():
                if size and name in REFUSED:
                    with pytest.raises(UsageError, match=REFUSED[name]):
                        algorithm.step(state, made, divide(problem, size))
                    return
                state, _ = algorithm.step(state, made, divide(problem, size) if size else problem)
        ends.append(state)
    assert_close(ends[1], ends[0])


def divide(problem, size):
    return dataclasses.replace(problem, micro_batches=MicroBatches.for_network(problem.network, size))


@pytest.mark.parametrize("algorithm", METHODS.values(), ids=METHODS)
def test_five_steps_of_a_run_give_the_same_result(algorithm):
    one = small(algorithm, probe=Probe(every=2))
    assert_close(session(one, micro_batch=3).train_state, session(one).train_state)


def gradients(size, *layers, samples=7, width=16):
    """Return the gradient of the mean loss of a network, in micro-batches of a size or for None in one pass."""
    torch.manual_seed(0)
    network = Network(nn.Sequential(*layers), nn.Linear(width, 4)).double().requires_grad_(False)
    params, buffers = dict(network.named_parameters()), dict(network.named_buffers())
    divided = MicroBatches.for_network(network, size) if size else None
    batch = Batch(torch.randn(2, samples, width, dtype=torch.float64), torch.zeros(2, samples, dtype=torch.int64))

    def objective(params):
        return Loss(Model(network, params, buffers, micro_batches=divided).risks(batch).mean())

    return gradient(objective)(params)


@pytest.mark.parametrize("size", [1, 3, 14, 100])
def test_micro_batches_draw_the_dropout_masks_of_whole_passes(size):
    torch.manual_seed(0)
    layers = nn.Linear(16, 16), Dropout(0.5), nn.Tanh(), Dropout(0.2)
    assert_close(gradients(size, *layers), gradients(None, *layers))


def test_batched_trials_with_micro_batches_equal_single_trials():
    mlp = {"network": "mlp"}
    trials = [small(POGM(kappa=0.2 + 0.5 * seed), mlp, seed=seed) for seed in range(2)]
    batched = session(*trials, micro_batch=3)
    assert not batched.uses_vmap
    for row, one in enumerate(trials):
        assert_close(trees.index(batched.train_state, row), session(one).train_state)


@pytest.mark.parametrize("sizes", [(3, 3), (3, None), (None, 3)])
def test_a_run_can_be_resumed_with_and_without_micro_batches(sizes):
    first, second = session(small(), steps=2, micro_batch=sizes[0]), session(small(), steps=0, micro_batch=sizes[1])
    second.train_state = save_and_load(first, second)
    for _ in range(3):
        second.step()
    assert_close(second.train_state.state, session(small()).train_state.state)


class PeakMemory(TorchDispatchMode):
    """Measure the largest number of bytes in tensors that were allocated while the mode is active."""

    def __init__(self):
        super().__init__()
        self.peak, self.live = 0, {}

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        result = function(*args, **(kwargs or {}))
        for leaf in result if isinstance(result, tuple | list) else [result]:
            if isinstance(leaf, torch.Tensor):
                storage = leaf.untyped_storage()
                self.live.setdefault(storage._cdata, (StorageWeakRef(storage), storage.nbytes()))
        self.live = {key: value for key, value in self.live.items() if not value[0].expired()}
        self.peak = max(self.peak, sum(size for _, size in self.live.values()))
        return result


def test_micro_batches_need_less_memory():
    """Most of the memory of a whole pass is for the activations of ten layers."""
    layers = [layer for _ in range(10) for layer in (nn.Linear(16, 16), nn.Tanh())]
    peaks = {}
    for size in (None, 200, 100):
        with PeakMemory() as memory:
            gradients(size, *layers, samples=1000)
        peaks[size] = memory.peak
    assert peaks[100] < peaks[200] < peaks[None] / 4


@pytest.mark.gpu
@needs_gpu
@pytest.mark.parametrize("options", [{"capture": False}, {}, {"compile": "on"}], ids=["eager", "captured", "compiled"])
def test_micro_batches_on_a_gpu_give_the_same_result(options):
    one = small(POGM(inner_steps=2))
    divided, whole = session(one, device="cuda", micro_batch=3, **options), session(one, device="cuda", **options)
    assert_close(divided.train_state, whole.train_state, 1e-7)


# Refusals and options.


@pytest.mark.parametrize(
    ("one", "reason"),
    [
        (small(training={"network": "resnet18", "weights": "random", "freeze_bn": False}), "freeze_bn=true"),
        (small(training={"network": "resnet18", "weights": "random"}, modifiers=(MixStyle(),)), "StyleMixing"),
    ],
    ids=["batch norm", "MixStyle"],
)
def test_networks_that_couple_samples_are_refused(one, reason):
    with pytest.raises(UsageError, match=f"treats every sample separately.*{reason}.*eave --micro-batch out"):
        session(one, steps=0, micro_batch=4)


@pytest.mark.parametrize("engine", [{"domains": "vmap"}, {"trials": "vmap"}], ids=str)
def test_vmap_is_refused(engine):
    with pytest.raises(UsageError, match="vmap"):
        session(small(POGM()), small(POGM(), seed=1), steps=1, micro_batch=4, **engine)


def test_a_size_below_one_is_refused():
    with pytest.raises(UsageError, match="micro_batch of at least 1; found 0"):
        Engine(micro_batch=0)


def test_the_option_reaches_the_engine_and_resume_reads_it_from_the_provenance(tmp_path):
    words = "run --dataset RotatedDigits --algorithm ERM --test-domain 0 --out x --micro-batch 3"
    options = make_run_options(parse(words.split()).execution)
    assert options.engine.micro_batch == 3
    run(small(steps=2), tmp_path, RunOptions(engine=Engine(micro_batch=3)))
    assert read_provenance("micro_batch", tmp_path) == 3
    for given, expected in (((), 3), (("--micro-batch", "5"), 5)):
        assert parse(["resume", str(tmp_path), *given]).options_of_the_run().device.micro_batch == expected
