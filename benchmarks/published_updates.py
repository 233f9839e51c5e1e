"""Rounds of the authors' POGM in float64, computed without the package, as test vectors.

python benchmarks/published_updates.py tests/algorithms/published_updates.json

The update follows the class CAG1 in the authors' repository step by step: a copy of the network and a
``torch.optim.Adam`` for each domain, which keeps its state between rounds; displacements; the descent on softmax
weights by autograd and ``torch.optim.SGD``; the rescaled direction. ``pooled`` is CAG_T, the class of their measurement
branch, where the centre is the displacement of one more copy that sees all domains.

On some problems the descent oscillates. Its result then changes by up to 6e-7 when the displacements change in their
last bit, and no other implementation can follow it to 1e-12. This happens in 8 % of the rounds of CAG1 with two domains
and of CAG_T (12 of 160, 37 of 480), and in none of 320 rounds of CAG1 with three and four domains. The runs below
converge.The seed of the run with two domains was chosen for that: of five seeds (3, 7, 8, 9, 10), only 7 converges in
all rounds.
"""

import copy
import json
import sys
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

NAMES = ("features.0.weight", "features.0.bias", "head.weight", "head.bias")
EPSILON = 1e-4


def flat(network: nn.Module) -> Tensor:
    """Return all weights as one vector."""
    return torch.cat([leaf.detach().reshape(-1) for leaf in network.parameters()])


def adam(network: nn.Module, lr: float, weight_decay: float, state: Any) -> torch.optim.Adam:
    """Return an optimizer with the state of the previous round."""
    made = torch.optim.Adam(network.parameters(), lr=lr, weight_decay=weight_decay)
    if state is not None:
        made.load_state_dict(state)
    return made


def descend(network: nn.Module, optimizer: torch.optim.Adam, x: Tensor, y: Tensor) -> None:
    """Take one step on a minibatch."""
    optimizer.zero_grad()
    F.cross_entropy(network(x), y).backward()
    optimizer.step()


def direction(h: Tensor, pooled: Tensor | None, c: float) -> tuple[Tensor, Tensor]:
    """Return the mixture of domains and the direction, from displacements [K, P]."""
    K = len(h)
    G = h @ h.T
    scale = (G.diagonal() + EPSILON).sqrt().mean() ** 2
    G = G / scale
    b = G.mean(1) if pooled is None else h @ pooled / scale
    square = G.mean() if pooled is None else pooled @ pooled / scale
    steps, momentum = (20, 0.5) if pooled is None else (30, 0.1)
    radius = c * (square + EPSILON).sqrt()
    logits = torch.zeros(K, requires_grad=True)
    optimizer = torch.optim.SGD([logits], lr=25, momentum=momentum)
    best, lowest = logits.detach().clone(), float("inf")
    for step in range(steps + 1):
        optimizer.zero_grad()
        p = logits.softmax(0)
        value = p @ b + radius * (p @ G @ p + EPSILON).sqrt()
        if value.item() < lowest:
            best, lowest = logits.detach().clone(), value.item()
        if step < steps:
            value.backward()
            optimizer.step()
    p = best.softmax(0)
    factor = radius.detach() / ((p @ G @ p + EPSILON).sqrt() + EPSILON)
    if pooled is None:
        return p, (1 / K + factor * p) @ h / (1 + c**2)
    return p, pooled + factor * p @ h / (1 + c**2)


def vectors(
    K: int, E: int, rounds: int, *, kappa: float, alpha: float, lr: float, decay: float, seed: int, pooled: bool
) -> dict[str, Any]:
    """Return a run: its first weights, its minibatches, and the mixture and the weights after every round."""
    generator = torch.Generator().manual_seed(seed)
    network = nn.Sequential(nn.Linear(4, 3), nn.Tanh(), nn.Linear(3, 3))
    with torch.no_grad():
        for leaf in network.parameters():
            leaf.copy_(torch.randn(leaf.shape, generator=generator) * 0.5)
    start = {name: leaf.tolist() for name, leaf in zip(NAMES, network.parameters(), strict=True)}
    states: list[Any] = [None] * (K + 1)  # the last one is that of the copy that sees all domains
    batches, found = [], []
    for _ in range(rounds):
        copies = [copy.deepcopy(network) for _ in range(K + 1)]
        optimizers = [adam(one, lr, decay, state) for one, state in zip(copies, states, strict=True)]
        for _ in range(E):
            x = torch.randn(K, 5, 4, generator=generator) + torch.arange(K).reshape(-1, 1, 1)
            y = torch.randint(3, (K, 5), generator=generator)
            batches.append({"x": x.tolist(), "y": y.tolist()})
            for k in range(K):
                descend(copies[k], optimizers[k], x[k], y[k])
            descend(copies[K], optimizers[K], x.flatten(0, 1), y.flatten())
        states = [optimizer.state_dict() for optimizer in optimizers]
        before = flat(network)
        *h, h_0 = (flat(one) - before for one in copies)
        mixture, d = direction(torch.stack(h), h_0 if pooled else None, kappa)
        after = before + alpha * d
        torch.nn.utils.vector_to_parameters(after, network.parameters())
        found.append({"mixture": mixture.tolist(), "weights": after.tolist()})
    return {
        "algorithm": "MeasurementPOGM" if pooled else "OfficialPOGM",
        "kappa": kappa,
        "meta_lr": alpha,
        "inner_steps": E,
        "lr": lr,
        "weight_decay": decay,
        "start": start,
        "batches": batches,
        "rounds": found,
    }


def main() -> None:
    torch.set_default_dtype(torch.float64)
    usual: dict[str, Any] = {"kappa": 0.5, "alpha": 0.5, "lr": 0.05, "decay": 0.0, "pooled": False}
    made = [
        vectors(3, 1, 4, **usual, seed=0),
        vectors(3, 5, 2, **usual | {"decay": 0.01}, seed=1),
        vectors(4, 2, 3, **usual | {"kappa": 0.1, "alpha": 0.1, "lr": 0.02}, seed=2),
        vectors(2, 1, 4, **usual, seed=7),  # a chosen seed, see above
        vectors(3, 1, 3, **usual | {"lr": 1e-4}, seed=4),  # short displacements, where ε decides
        vectors(3, 1, 4, **usual | {"pooled": True}, seed=5),
        vectors(3, 5, 2, **usual | {"pooled": True, "decay": 0.01}, seed=6),
    ]
    Path(sys.argv[1]).write_text(json.dumps(made, separators=(",", ":")) + "\n")


if __name__ == "__main__":
    main()
