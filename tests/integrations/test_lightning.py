"""DomainTraining: a real Trainer of Lightning gives the weights of a Learner, with checkpoints, logs and validation."""

import csv
import doctest
import importlib.util
import os
import runpy
import subprocess
import sys
import textwrap
from functools import cache
from itertools import cycle
from pathlib import Path

import pytest
import torch
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import pogm.integrations.lightning
from pogm import ERM, POGM, GroupDRO, Learner
from pogm._system.errors import UsageError
from pogm.integrations.lightning import DomainTraining

pytestmark = [
    pytest.mark.skipif(importlib.util.find_spec("lightning") is None, reason="needs pip install 'pogm[lightning]'"),
    pytest.mark.filterwarnings("ignore"),  # Lightning warns about workers, deprecated functions of torch and folders
]
EXAMPLE = Path(__file__).parents[2] / "examples/lightning_trainer.py"
SIZES = {"a": 20, "b": 24, "c": 40}  # 3, 3 and 5 minibatches of 8 samples


@cache
def domains():
    generator = torch.Generator().manual_seed(0)
    tensors = {k: (torch.randn(n, 4, generator=generator), torch.arange(n) % 3) for k, n in SIZES.items()}
    return {name: TensorDataset(*both) for name, both in tensors.items()}


def loaders(shuffle=False):
    return {name: DataLoader(samples, 8, shuffle=shuffle) for name, samples in domains().items()}


def network(dropout=0.0):
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.ReLU(), nn.Dropout(dropout), nn.Linear(8, 3))


def learner(module, algorithm=None):
    return Learner(module, algorithm or POGM(inner_steps=2), optimizer="adamw", lr=0.01, schedule="cosine", steps=20)


@cache
def existing_class():
    """Return a LightningModule of a user, with a training of its own. Lightning is imported only by these tests."""
    from lightning.pytorch import LightningModule

    class Classifier(LightningModule):
        def __init__(self, algorithm=None, dropout=0.0):
            super().__init__()
            self.network, self.algorithm = network(dropout), algorithm

        def forward(self, x):
            return self.network(x)

        def training_step(self, batch, batch_idx):
            raise AssertionError("replaced by DomainTraining")

        def configure_optimizers(self):
            raise AssertionError("replaced by DomainTraining")

        def validation_step(self, batch, batch_idx):
            self.log("val_loss", F.cross_entropy(self(batch[0]), batch[1]))

    return Classifier


@cache
def domain_class():
    class DomainClassifier(DomainTraining, existing_class()):
        def configure_learner(self):
            return learner(self.network, self.algorithm)

    return DomainClassifier


def make_trainer(folder, **options):
    from lightning.pytorch import Trainer
    from lightning.pytorch.loggers import CSVLogger

    settings = {"max_epochs": 1, "logger": CSVLogger(folder), "log_every_n_steps": 1, "accelerator": "cpu"} | options
    return Trainer(**settings, default_root_dir=folder, enable_progress_bar=False, enable_model_summary=False)


def assert_same(left, right):
    for name, leaf in left.state_dict().items():
        assert torch.equal(leaf, right.state_dict()[name]), name


def test_trainer_gives_the_weights_of_a_learner_and_logs_its_loss(tmp_path):
    module = domain_class()()
    trainer = make_trainer(tmp_path, max_epochs=2)
    trainer.fit(module, loaders(), DataLoader(domains()["a"], 20))

    expected = network()
    reference, losses = learner(expected), []
    for _ in range(2):
        for batches in zip(*(cycle(loader) for loader in list(loaders().values())[:2]), loaders()["c"], strict=False):
            metrics = reference.step(dict(zip(SIZES, batches, strict=True)))
            losses += [] if metrics is None else [float(metrics["loss"])]
    assert_same(module.network, expected)
    assert trainer.global_step == len(losses) == 5  # steps of POGM, each of two minibatches

    with open(Path(trainer.logger.log_dir) / "metrics.csv") as file:
        logged = [float(row["train_loss"]) for row in csv.DictReader(file) if row["train_loss"]]
    assert list(dict.fromkeys(logged)) == pytest.approx(losses)
    x, y = domains()["a"].tensors
    expected.eval()
    assert trainer.callback_metrics["val_loss"] == F.cross_entropy(expected(x), y)


@pytest.mark.parametrize("algorithm", [POGM(inner_steps=2), GroupDRO()], ids=["POGM", "GroupDRO"])
def test_resumed_training_is_bit_identical(tmp_path, algorithm):
    """One of 5 minibatches of the first epoch waits for the second epoch (POGM). Dropout and shuffling are random."""
    full, stopped, resumed = (domain_class()(algorithm, dropout=0.3) for _ in range(3))
    validation = DataLoader(domains()["a"], 8)
    torch.manual_seed(1)
    make_trainer(tmp_path / "full", max_epochs=2).fit(full, loaders(shuffle=True), validation)
    torch.manual_seed(1)
    first = make_trainer(tmp_path / "parts", max_epochs=1)
    first.fit(stopped, loaders(shuffle=True), validation)
    torch.manual_seed(2)
    second = make_trainer(tmp_path / "parts", max_epochs=2)
    second.fit(resumed, loaders(shuffle=True), validation, ckpt_path=first.checkpoint_callback.best_model_path)
    assert_same(full, resumed)
    assert not torch.equal(full.network[0].weight, stopped.network[0].weight)

    saved = torch.load(first.checkpoint_callback.best_model_path, weights_only=True)
    assert "module" not in saved["optimizer_states"][0]  # no second copy of the weights
    with pytest.raises(UsageError, match=r"Expected the saved state of a Learner with algorithm ERM\("):
        make_trainer(tmp_path).fit(
            domain_class()(ERM()), loaders(), ckpt_path=first.checkpoint_callback.best_model_path
        )


def test_one_loader_with_domain_labels(tmp_path):
    """The module is also the Learner's module, as in projects that define layers in the LightningModule itself."""

    class Labelled(DomainTraining, existing_class()):
        def configure_learner(self):
            return learner(self, ERM())

        def split_batch(self, batch):
            x, y, domain = batch
            return (x, y), domain

    x, y = domains()["c"].tensors
    labels = torch.arange(40) % 3
    module, expected = Labelled(), network()
    make_trainer(tmp_path).fit(module, DataLoader(TensorDataset(x, y, labels), 8))
    reference = learner(expected, ERM())
    for rows in torch.arange(40).split(8):
        reference.step((x[rows], y[rows]), domains=labels[rows])
    assert_same(module.network, expected)


def test_training_methods_of_the_user_are_refused():
    with pytest.raises(UsageError, match=r"training_step of DomainTraining in the class Own, .* found another one"):
        type("Own", (DomainTraining, existing_class()), {"training_step": lambda self, batch, batch_idx: None})
    with pytest.raises(UsageError, match="Expected configure_optimizers of DomainTraining"):
        type("Own", (DomainTraining, existing_class()), {"configure_optimizers": lambda self: None})
    with pytest.raises(UsageError, match=r"name DomainTraining first: class Last\(DomainTraining, ...\)"):
        type("Last", (existing_class(), DomainTraining), {})


def test_missing_learner_and_mixed_precision_are_refused(tmp_path):
    with pytest.raises(UsageError, match="Expected the method configure_learner in the class Empty; found none"):
        make_trainer(tmp_path).fit(type("Empty", (DomainTraining, existing_class()), {})(), loaders())
    with pytest.raises(UsageError, match=r"found 'bf16-mixed'. For mixed precision pass Learner\(..., precision='bf16"):
        make_trainer(tmp_path, precision="bf16-mixed").fit(domain_class()(), loaders())


TWO_PROCESSES = """
    import torch
    from lightning.pytorch import LightningModule, Trainer
    from torch.nn import functional as F
    from torch.utils.data import DataLoader, TensorDataset

    import pogm
    from pogm.integrations.lightning import DomainTraining


    class Classifier(LightningModule):
        def __init__(self):
            super().__init__()
            torch.manual_seed(0)
            self.network = torch.nn.Linear(4, 3)
            self.automatic_optimization = False

        def configure_optimizers(self):
            return torch.optim.SGD(self.parameters(), 0.1)

        def training_step(self, batch, batch_idx):
            losses = [F.cross_entropy(self.network(x), y) for x, y in batch.values()]
            group = torch.distributed.group.WORLD if self.trainer.world_size > 1 else None
            optimizer = self.optimizers()
            optimizer.zero_grad()
            pogm.backward(losses, self.parameters(), pogm.POGM(kappa=0.5), group=group)
            optimizer.step()


    class DomainClassifier(DomainTraining, Classifier):
        def configure_learner(self):
            return pogm.Learner(self.network, pogm.POGM())


    def train(processes, module):
        options = {"logger": False, "enable_checkpointing": False, "enable_progress_bar": False, "max_epochs": 3}
        strategy = "ddp_fork" if processes > 1 else "auto"
        trainer = Trainer(accelerator="cpu", devices=processes, strategy=strategy, **options)
        generator = torch.Generator().manual_seed(0)
        sets = {k: TensorDataset(torch.randn(16, 4, generator=generator), torch.arange(16) % 3) for k in "ab"}
        trainer.fit(module, {k: DataLoader(samples, 16 // processes) for k, samples in sets.items()})
        return module.network.weight


    torch.set_num_threads(1)
    torch.testing.assert_close(train(1, Classifier()), train(2, Classifier()), rtol=0, atol=1e-6)
    print("same weights")
    train(2, DomainClassifier())
"""


@pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork, to start two processes quickly")
def test_two_processes_are_refused_and_backward_supports_them():
    """The weights of `backward` in two processes are those in one process."""
    command = [sys.executable, "-c", textwrap.dedent(TWO_PROCESSES)]
    done = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert "same weights" in done.stdout.splitlines(), done.stderr
    assert "UsageError: Expected one device, because a Learner does not exchange gradients" in done.stderr
    assert "found DDPStrategy with 2 processes. Pass Trainer(devices=1), or call pogm.backward" in done.stderr


def test_docstring_example_runs():
    assert doctest.testmod(pogm.integrations.lightning) == (0, 5)


def test_example_learns(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    found = runpy.run_path(str(EXAMPLE), run_name="__main__")
    assert found["trainer"].callback_metrics["val_acc"] > 0.5
