"""POGM in your own training loop: regression on sites of different size, with a checkpoint, and with a torch optimizer.

The data are made here: four sites measure the same quantity with their own offset and noise. One site is held out.

    python examples/own_loop.py
"""

import tempfile
from pathlib import Path

import torch
from torch import Tensor, nn

import pogm
from pogm import POGM, Learner

SITES = {"Basel": 400, "Bern": 150, "Chur": 40}  # training sites and their numbers of samples
STEPS = 300


def make_site(number: int, count: int) -> tuple[Tensor, Tensor]:
    """Return inputs [N, 8] and targets [N] of a site."""
    generator = torch.Generator().manual_seed(number)
    x = torch.randn(count, 8, generator=generator)
    y = torch.sin(x[:, 0]) + 0.5 * x[:, 1] * x[:, 2]
    x[:, 3] = y + 0.3 * number * torch.randn(count, generator=generator)  # reliable only at some sites
    return x, y


def make_module() -> nn.Module:
    """Return a small network with one output."""
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(8, 64), nn.ReLU(), nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 1))


def draw(site: tuple[Tensor, Tensor], size: int) -> tuple[Tensor, Tensor]:
    """Draw a minibatch of a site. Small sites give fewer samples."""
    rows = torch.randperm(len(site[1]))[:size]
    return site[0][rows], site[1][rows]


def error(module: nn.Module, site: tuple[Tensor, Tensor]) -> float:
    """Return the mean squared error of a module at a site."""
    with torch.no_grad():
        return nn.functional.mse_loss(module(site[0]).squeeze(1), site[1]).item()


def train_with_learner(sites: dict[str, tuple[Tensor, Tensor]], folder: Path) -> nn.Module:
    """Train by a Learner, which is saved and loaded in the middle."""
    module = make_module()
    learner = Learner(module, POGM(), loss="huber", optimizer="adamw", lr=3e-3, schedule="cosine", steps=STEPS)
    for step in range(STEPS):
        if step == STEPS // 2:
            torch.save(learner.state_dict(), folder / "learner.pt")
            learner.load_state_dict(torch.load(folder / "learner.pt"))  # in practice, in a new process
        metrics = learner.step({name: draw(site, 64) for name, site in sites.items()})
        if step % 100 == 0 and metrics is not None:
            print(f"step {step}: loss {metrics['loss']:.3f}, worst agreement {metrics['worst']:.4f}")
    return module


def train_with_backward(sites: dict[str, tuple[Tensor, Tensor]]) -> nn.Module:
    """Train by an optimizer of torch: `pogm.backward` fills the gradients."""
    module = make_module()
    optimizer = torch.optim.AdamW(module.parameters(), lr=3e-3)
    for _ in range(STEPS):
        minibatches = [draw(site, 64) for site in sites.values()]
        losses = [nn.functional.huber_loss(module(x).squeeze(1), y) for x, y in minibatches]
        optimizer.zero_grad()
        pogm.backward(losses, module.parameters(), POGM())
        optimizer.step()
    return module


def main() -> dict[str, float]:
    """Train in both ways, and return the errors at the held-out site."""
    sites = {name: make_site(number, count) for number, (name, count) in enumerate(SITES.items())}
    held_out = make_site(3, 1000)
    errors = {"untrained": error(make_module(), held_out)}
    with tempfile.TemporaryDirectory() as folder:
        errors["Learner"] = error(train_with_learner(sites, Path(folder)), held_out)
    errors["backward"] = error(train_with_backward(sites), held_out)
    for name, value in errors.items():
        print(f"{name}: mean squared error {value:.3f} at the held-out site")
    return errors


if __name__ == "__main__":
    main()
