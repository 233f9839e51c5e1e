"""Learner: trains any module with an algorithm of this package, inside a user's own training loop."""

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
from pogm.engine.per_domain import gradient, map_by_loop
from pogm.modifiers.base import Modifier

Pairs = Sequence[tuple[Tensor, Tensor]]  # one (x, y) per domain, all with the same number of samples


class Learner:
    """Trains a module with an algorithm, one minibatch of every domain at a time.

    Each step reads the weights of the module and writes the new ones in place. So you can load a checkpoint, freeze
    layers (``requires_grad`` and ``eval``) and change the module in other ways between steps.

    Args:
        module: Module that returns logits.
        algorithm: Algorithm that trains it.
        lr: Learning rate.
        weight_decay: Weight decay.
        head: Name of the last layer, for algorithms that treat the classifier and the features differently.
        modifiers: Modifiers of the algorithm.
        seed: Seed of random numbers.
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
        if Modifier.needs_validation_loss(self.modifiers):
            raise UsageError(
                "Expected modifiers that need no validation images, because a Learner has none; found one that does, "
                f"among {', '.join(type(modifier).__name__ for modifier in modifiers)}. Leave it out."
            )
        self.state: State | None = None  # created with the first minibatch, which has the number of domains
        self._optimizer = algorithm.optimizer(lr, weight_decay)
        self._seed = seed
        self._waiting: list[Batch] = []
        self._minibatches = 0
        self._head = head
        self._network = _build_network(module, head)
        names = [*dict(self._network.named_parameters()), *dict(self._network.named_buffers())]
        self._names = {name: _module_name(name, head) for name in names}
        for modifier in self.modifiers:
            self._network = modifier.network(self._network)

    def step(self, batches: Pairs | Batch) -> Metrics | None:
        """Train on one minibatch of each domain.

        Some algorithms use several minibatches per step, for example POGM with ``inner_steps`` above 1. They update the
        weights when they have all of them.

        Returns:
            The metrics of the algorithm, as tensors; None if it waits for more minibatches.
        """
        batch = _stack_domains(batches)
        if self.state is None:
            self.state, self._problem = self._start(batch)
            self._memory = [modifier.start(self.state, self._problem) for modifier in self.modifiers]
        for i, modifier in enumerate(self.modifiers):
            key = random.fold(self.state.random_key(Purpose.MODIFIER, self._minibatches), i)
            batch = modifier.batch(batch, key, self._problem.num_classes)
        self._minibatches += 1
        self._waiting.append(batch)
        if len(self._waiting) < self.algorithm.minibatches:
            return None

        waiting, self._waiting = self._waiting, []
        self._copy_modes()
        problem = replace(self._problem, live=live_buffers(self._network))
        params, buffers = self._tensors()
        with torch.no_grad():
            before = self.state._replace(params=params, buffers=buffers)
            self.state, metrics = self.algorithm.step(before, waiting, problem)
            for i, modifier in enumerate(self.modifiers):
                self._memory[i], self.state = modifier.after(self._memory[i], self.state, waiting, problem)
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
            num_classes=self._count_classes(batch.x[0, :2]),
            gradient=gradient,
            each_domain=map_by_loop,
            penalties=Modifier.penalties(self.modifiers),
            custom_risks=Modifier.find_risks(self.modifiers),
            mixes=any(modifier.mixes_samples for modifier in self.modifiers),
        )
        params, buffers = self._tensors()
        key = random.key(self._seed, batch.y.device)
        return self.algorithm.start(params, buffers, key, problem), problem

    def _count_classes(self, x: Tensor) -> int:
        """Return the number of classes. Check that features and head together give the outputs of the module."""
        network, module = copy.deepcopy(self._network).eval(), copy.deepcopy(self.module).eval()
        with torch.no_grad():
            logits, expected = network(x), module(x)
        if logits.shape != expected.shape or not torch.allclose(logits, expected, rtol=1e-3, atol=1e-5):
            raise UsageError(
                f"Expected the head {self._head!r} to be the last layer of the module; found that its outputs are not "
                "those of the module. Name the layer that returns the logits, or leave head out."
            )
        return int(logits.shape[-1])

    def _copy_modes(self) -> None:
        """Put every layer of the network into the mode (training or evaluation) of the module's layer."""
        modes = {name: layer.training for name, layer in self.module.named_modules()}
        for name, layer in self._network.named_modules():
            layer.training = modes.get(_module_name(name, self._head), self.module.training)

    def _module_tensors(self) -> Params:
        return {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}

    def _tensors(self) -> tuple[Params, Params]:
        """Return the module's tensors under the names of the network: trained parameters, and all others."""
        module_tensors = self._module_tensors()
        tensors = {name: module_tensors[module_name] for name, module_name in self._names.items()}
        params = {name: leaf.detach() for name, leaf in tensors.items() if leaf.requires_grad}
        return params, {name: leaf.detach() for name, leaf in tensors.items() if name not in params}

    def _write_back(self, state: State, problem: Problem) -> None:
        module_tensors = self._module_tensors()
        for name, leaf in {**state.params, **problem.live_buffers(state)}.items():
            module_tensors[self._names[name]].copy_(leaf)


def _build_network(module: nn.Module, head: str | None) -> Network:
    """Return a copy of the module, divided into features and head."""
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


def _module_name(name: str, head: str | None) -> str:
    """Return the module's name of a tensor or layer of the network."""
    part, _, rest = name.partition(".")
    return ".".join(filter(None, (head, rest))) if part == "head" else rest


def _stack_domains(batches: Pairs | Batch) -> Batch:
    """Return one minibatch with the domains as first axis."""
    if isinstance(batches, Batch):
        return batches
    sizes = [len(y) for _, y in batches]
    if len(set(sizes)) != 1:
        raise UsageError(
            f"Expected the same number of samples from every domain; found {sizes}. Draw the same number from each, "
            "with replacement if a domain has too few."
        )
    return Batch(torch.stack([x for x, _ in batches]), torch.stack([y for _, y in batches]))
