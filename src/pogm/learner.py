"""For people who own their loop: a stateful object around any module."""

import copy
from collections.abc import Sequence
from dataclasses import replace

import torch
from torch import Tensor, nn

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.model import Network
from pogm.core.problem import Problem, live_buffers
from pogm.core.state import Metrics, Purpose, State
from pogm.core.trees import Params
from pogm.engine.per_domain import gradient, in_a_loop
from pogm.modifiers.base import Modifier

Pairs = Sequence[tuple[Tensor, Tensor]]  # one (x, y) per domain, all of the same size


class Learner:
    """Trains a module of yours with an algorithm of ours, one minibatch of every domain at a time.

    The module stays yours: its weights are read before a step and written after it, in place, so that loading a
    checkpoint, freezing layers (``requires_grad`` and ``eval``) and everything else you do with it keeps working.
    ``head`` names the last layer, for algorithms that look at the classifier apart from the features.
    """

    def __init__(
        self,
        module: nn.Module,
        algorithm: Algorithm,
        *,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        head: str | None = None,
        modifiers: Sequence[Modifier] = (),
        seed: int = 0,
    ):
        self.module = module
        self.algorithm = algorithm
        self.modifiers = tuple(modifiers)
        if Modifier.observing(self.modifiers):
            raise UsageError(
                "Expected modifiers that need no validation images, which a Learner has not; found one that does, "
                f"among {', '.join(type(modifier).__name__ for modifier in modifiers)}. Leave it out."
            )
        self.state: State | None = None  # made with the first minibatch, which tells how many domains there are
        self._optimizer = algorithm.optimizer(lr, weight_decay)
        self._seed = seed
        self._waiting: list[Batch] = []
        self._seen = 0
        self._head = head
        self._network = _network(module, head)
        names = [*dict(self._network.named_parameters()), *dict(self._network.named_buffers())]
        self._names = {name: _own_name(name, head) for name in names}
        for modifier in self.modifiers:
            self._network = modifier.network(self._network)

    def step(self, batches: Pairs | Batch) -> Metrics | None:
        """Learn from one minibatch of each domain.

        Returns what the algorithm reports, as tensors. An algorithm that takes several minibatches a step (POGM with
        ``inner_steps`` above 1) returns None until it has them, and the weights stay as they are until then.
        """
        batch = _stacked(batches)
        if self.state is None:
            self.state, self._problem = self._start(batch)
            self._kept = [modifier.start(self.state, self._problem) for modifier in self.modifiers]
        for place, modifier in enumerate(self.modifiers):
            key = random.fold(self.state.random_key(Purpose.MODIFIER, self._seen), place)
            batch = modifier.batch(batch, key, self._problem.num_classes)
        self._seen += 1
        self._waiting.append(batch)
        if len(self._waiting) < self.algorithm.minibatches:
            return None

        waiting, self._waiting = self._waiting, []
        self._take_modes()
        problem = replace(self._problem, live=live_buffers(self._network))
        params, buffers = self._tensors()
        with torch.no_grad():
            before = self.state._replace(params=params, buffers=buffers)
            self.state, metrics = self.algorithm.step(before, waiting, problem)
            for place, modifier in enumerate(self.modifiers):
                self._kept[place], self.state = modifier.after(self._kept[place], self.state, waiting, problem)
            self._write_back(self.state, problem)
        return metrics

    def _start(self, batch: Batch) -> tuple[State, Problem]:
        count = batch.y.shape[0]
        if count < self.algorithm.min_domains:
            raise UsageError(
                f"Expected minibatches of at least {self.algorithm.min_domains} domains for "
                f"{type(self.algorithm).__name__}; found {count}. Pass one (x, y) per domain."
            )
        problem = Problem(
            network=self._network,
            optimizer=self._optimizer,
            num_domains=count,
            num_classes=self._classes(batch.x[0, :2]),
            gradient=gradient,
            each_domain=in_a_loop,
            penalties=Modifier.penalties(self.modifiers),
            replacement=Modifier.replacement(self.modifiers),
            mixes=any(modifier.mixes_samples for modifier in self.modifiers),
        )
        params, buffers = self._tensors()
        key = random.key(self._seed, batch.y.device)
        return self.algorithm.start(params, buffers, key, problem), problem

    def _classes(self, x: Tensor) -> int:
        """How many there are; and that features and head, put together, are still the module."""
        ours, theirs = copy.deepcopy(self._network).eval(), copy.deepcopy(self.module).eval()
        with torch.no_grad():
            logits, expected = ours(x), theirs(x)
        if logits.shape != expected.shape or not torch.allclose(logits, expected, rtol=1e-3, atol=1e-5):
            raise UsageError(
                f"Expected the head {self._head!r} to be the last thing the module does; found that its outputs are "
                "not the module's. Name the layer that makes the logits, or leave head out."
            )
        return int(logits.shape[-1])

    def _take_modes(self) -> None:
        """Train and evaluate, layer by layer, as the module does."""
        modes = {name: layer.training for name, layer in self.module.named_modules()}
        for name, layer in self._network.named_modules():
            layer.training = modes.get(_own_name(name, self._head), self.module.training)

    def _own(self) -> Params:
        return {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}

    def _tensors(self) -> tuple[Params, Params]:
        """The module's tensors under the network's names: those that are trained, and the others."""
        own = self._own()
        tensors = {name: own[mine] for name, mine in self._names.items()}
        params = {name: leaf.detach() for name, leaf in tensors.items() if leaf.requires_grad}
        return params, {name: leaf.detach() for name, leaf in tensors.items() if name not in params}

    def _write_back(self, state: State, problem: Problem) -> None:
        own = self._own()
        for name, leaf in {**state.params, **problem.live_buffers(state)}.items():
            own[self._names[name]].copy_(leaf)


def _network(module: nn.Module, head: str | None) -> Network:
    """A copy of the module as features and head."""
    skeleton = copy.deepcopy(module)
    if head is None:
        return Network(skeleton, nn.Identity())
    try:
        last = skeleton.get_submodule(head)
    except AttributeError as error:
        names = ", ".join(name for name, _ in module.named_children())
        raise UsageError(f"Expected the name of a layer ({names}, ...) as head; found {head!r}.") from error
    skeleton.set_submodule(head, nn.Identity())
    return Network(skeleton, last)


def _own_name(name: str, head: str | None) -> str:
    """What the module calls what the network calls ``name``."""
    part, _, rest = name.partition(".")
    return ".".join(filter(None, (head, rest))) if part == "head" else rest


def _stacked(batches: Pairs | Batch) -> Batch:
    """One minibatch with the domains as its first axis."""
    if isinstance(batches, Batch):
        return batches
    sizes = [len(y) for _, y in batches]
    if len(set(sizes)) != 1:
        raise UsageError(
            f"Expected as many samples from every domain; found {sizes}. Draw the same number from each, with "
            "replacement where a domain has too few."
        )
    return Batch(torch.stack([x for x, _ in batches]), torch.stack([y for _, y in batches]))
