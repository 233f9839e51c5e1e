"""Learner: saved and loaded states continue with the same bits, also after a kill."""

import io
import os
import signal
from pathlib import Path

import pytest
import torch
from processes import CONTEXT
from support import INPUTS, C, K
from torch import nn

from pogm import ERM, POGM, Fishr, GroupDRO, Learner, Mixup, PCGrad
from pogm._system.errors import UsageError

ALGORITHMS = {
    "ERM": ERM(),
    "GroupDRO": GroupDRO(),
    "Fishr": Fishr(penalty_anneal_iters=3),
    "PCGrad": PCGrad(),
    "POGM": POGM(inner_steps=2),
}


def network(outputs=C):
    torch.manual_seed(0)
    layers = [nn.Linear(INPUTS, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(0.3), nn.Linear(8, outputs)]
    return nn.Sequential(*layers)


def pairs(seed):
    """Return minibatches of different size; every third time, the last domain is missing."""
    generator = torch.Generator().manual_seed(seed)
    sizes = (8, 5, 0 if seed % 3 == 2 else 3)
    data = [(torch.randn(n, INPUTS, generator=generator), torch.randint(C, (n,), generator=generator)) for n in sizes]
    return dict(zip("abc", data, strict=True))


def make(name="POGM", **options):
    module = network()
    settings = {"optimizer": "adamw", "schedule": "cosine", "steps": 20, "modifiers": [Mixup()], "head": "4"} | options
    settings["groups"] = [{"params": module[4].parameters(), "lr": 0.01}]
    return module, Learner(module, ALGORITHMS[name], **settings)


def assert_same(left, right):
    for name, leaf in left.state_dict().items():
        assert torch.equal(leaf, right.state_dict()[name]), name


@pytest.mark.parametrize("name", ALGORITHMS)
@pytest.mark.parametrize("stop", [1, 4])
def test_resumed_learner_is_bit_identical(name, stop):
    """Minibatches wait (POGM with two inner steps), dropout draws from torch's generator, Mixup from ours."""
    module, learner = make(name)
    for seed in range(8):
        if seed == stop:
            file = io.BytesIO()
            torch.save(learner.state_dict(), file)
        metrics = learner.step(pairs(seed))

    other, resumed = make(name, seed=5)
    nn.init.zeros_(other[0].weight)
    torch.manual_seed(99)
    file.seek(0)
    resumed.load_state_dict(torch.load(file, weights_only=True))
    for seed in range(stop, 8):
        again = resumed.step(pairs(seed))
    assert_same(module, other)
    assert (metrics is None) == (again is None)
    for key, value in (metrics or {}).items():
        torch.testing.assert_close(again[key], value, rtol=0, atol=0, equal_nan=True)


def test_saved_state_does_not_change_when_training_goes_on():
    _, learner = make()
    learner.step(pairs(0))
    learner.step(pairs(1))
    saved = learner.state_dict()
    before = {name: leaf.clone() for name, leaf in {**saved["tensors"], **saved["module"]}.items()}
    for seed in range(2, 6):
        learner.step(pairs(seed))
    assert all(torch.equal(leaf, before[name]) for name, leaf in {**saved["tensors"], **saved["module"]}.items())


def test_state_before_the_first_step_is_accepted():
    module, learner = make()
    saved = learner.state_dict()
    other, resumed = make()
    for seed in range(6):  # steps that the saved state does not have
        resumed.step(pairs(seed))
    resumed.load_state_dict(saved)
    for each in (learner, resumed):
        torch.manual_seed(1)
        for seed in range(2):
            each.step(pairs(seed))
    assert_same(module, other)


@pytest.mark.parametrize(
    ("build", "message"),
    [
        (lambda: make("ERM"), r"with algorithm ERM\(\); found POGM\(inner_steps=2"),
        (lambda: make(optimizer="sgd"), "with optimizer SGD; found AdamW"),
        (lambda: make(modifiers=[]), r"with modifiers \[\]; found \[Mixup"),
        (lambda: make(loss=lambda o, y: o.mean(1)), "with loss <lambda>; found cross_entropy"),
        (lambda: make(domains=["x", "y"]), r"with domains \['x', 'y'\]; found \['a', 'b', 'c'\]"),
        (lambda: (None, Learner(network(7), ALGORITHMS["POGM"], optimizer="adamw", modifiers=[Mixup()])), "4.bias"),
        (lambda: _frozen(), "the same trained weights, .*optimizer/domains/mean"),
    ],
    ids=["algorithm", "optimizer", "modifiers", "loss", "domains", "module", "frozen"],
)
def test_mismatching_state_is_refused_and_changes_nothing(build, message):
    _, learner = make()
    learner.step(pairs(0))
    saved = learner.state_dict()
    _, other = build()
    before = {name: leaf.clone() for name, leaf in other.module.state_dict().items()}
    with pytest.raises(UsageError, match=f"Expected .*{message}"):
        other.load_state_dict(saved)
    assert all(torch.equal(leaf, before[name]) for name, leaf in other.module.state_dict().items())
    assert other.state is None


def _frozen():
    module, learner = make()
    module[0].requires_grad_(False)
    return module, learner


def test_other_objects_are_refused_as_a_state():
    _, learner = make()
    with pytest.raises(UsageError, match=r"that Learner.state_dict returned; found the keys '0.weight'"):
        learner.load_state_dict({"0.weight": torch.zeros(1)})


def train(path: Path, steps: int, killed_at: str = "") -> None:
    """Continue from the last saved state, and save after every step. Kill this process before or after a save."""
    torch.set_num_threads(1)  # like the process of the tests
    module, learner = make()
    start = 0
    if path.exists():
        saved = torch.load(path, weights_only=True)
        learner.load_state_dict(saved["learner"])
        start = saved["next"]
    for seed in range(start, steps):
        learner.step(pairs(seed))
        torch.save({"learner": learner.state_dict(), "next": seed + 1}, path.with_suffix(".new"))
        if killed_at == f"before {seed}":
            os.kill(os.getpid(), signal.SIGKILL)
        os.replace(path.with_suffix(".new"), path)
        if killed_at == f"after {seed}":
            os.kill(os.getpid(), signal.SIGKILL)
    torch.save(module.state_dict(), path.with_suffix(".weights"))


@pytest.mark.parametrize(("killed_at", "saved"), [("before 4", 4), ("after 4", 5)])
def test_killed_process_resumes_with_identical_weights(tmp_path, killed_at, saved):
    """The program continues from the last saved state, and ends with the same bits."""
    steps, path = 12, tmp_path / "state.pt"
    codes = []
    for words in ((killed_at,), ()):
        process = CONTEXT.Process(target=train, args=(path, steps, *words))
        process.start()
        process.join(60)
        codes.append(process.exitcode)
        if words:
            assert torch.load(path, weights_only=True)["next"] == saved
    assert codes == [-signal.SIGKILL, 0]

    module, learner = make()
    for seed in range(steps):
        learner.step(pairs(seed))
    resumed = torch.load(path.with_suffix(".weights"), weights_only=True)
    assert all(torch.equal(leaf, resumed[name]) for name, leaf in module.state_dict().items())


def test_number_of_domains_is_saved():
    _, learner = make()
    learner.step(pairs(0))
    assert learner.state_dict()["domains"] == ["a", "b", "c"]
    assert len(learner.domains) == K
