"""For people who own their loop: a stateful object around any module."""

import copy
from collections.abc import Sequence

import torch
from torch import Tensor, nn

from pogm.algorithms.base import Algorithm
from pogm.core import random
from pogm.core.batch import Batch
from pogm.core.errors import UsageError
from pogm.core.model import Network
from pogm.core.problem import Problem, live_buffers
from pogm.core.state import Metrics, State
from pogm.engine.domains import gradient, in_a_loop
from pogm.modifiers.base import Modifier

Pairs = Sequence[tuple[Tensor, Tensor]]  # one (x, y) per domain, all of the same size


class Learner:
    """Trains a module of yours with an algorithm of ours, one minibatch of every domain at a time.

    The module's own weights are updated in place, so everything else you do with it keeps working. Parameters
    that do not require a gradient stay as they are. ``head`` names the last layer, for algorithms that look at
    the classifier apart from the features.
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
        self.state: State | None = None  # made with the first minibatch, which tells how many domains there are
        self._optimizer = algorithm.optimizer(lr, weight_decay)
        self._seed = seed
        self._waiting: list[Batch] = []
        self._seen = 0
        self._network, self._names = _network(module, head)

    def step(self, batches: Pairs | Batch) -> Metrics | None:
        """Learn from one minibatch of each domain.

        Returns what the algorithm reports, as tensors. An algorithm that takes several minibatches a step (POGM with
        ``inner_steps`` above 1) returns None until it has them, and the weights stay as they are until then.
        """
        batch = _stacked(batches)
        if self.state is None:
            self._start(batch)
        assert self.state is not None
        for place, modifier in enumerate(self.modifiers):
            key = random.fold(random.fold(self.state.key, self._seen), place)
            batch = modifier.batch(batch, key, self._problem.num_classes)
        self._seen += 1
        self._waiting.append(batch)
        if len(self._waiting) < self.algorithm.minibatches:
            return None
        waiting, self._waiting = self._waiting, []
        self._network.train(self.module.training)
        with torch.no_grad():
            self.state, metrics = self.algorithm.step(self.state, waiting, self._problem)
            self._write_back(self.state)
        return metrics

    def _start(self, batch: Batch) -> None:
        count = batch.y.shape[0]
        if count < self.algorithm.min_domains:
            raise UsageError(
                f"Expected minibatches of at least {self.algorithm.min_domains} domains for "
                f"{type(self.algorithm).__name__}; found {count}. Pass one (x, y) per domain."
            )
        training = self.module.training
        with torch.no_grad():
            logits = self.module.eval()(batch.x[0, :1])
        self.module.train(training)
        self._network.train(training)
        self._problem = Problem(
            network=self._network,
            optimizer=self._optimizer,
            num_domains=count,
            num_classes=logits.shape[-1],
            gradient=gradient,
            each_domain=in_a_loop,
            penalties=tuple(modifier.penalty for modifier in self.modifiers),
            live=live_buffers(self._network),
        )
        mine = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        trained = {n for n, p in self._network.named_parameters() if mine[self._names[n]].requires_grad}
        tensors = {name: mine[own].detach().clone() for name, own in self._names.items()}
        params = {name: leaf for name, leaf in tensors.items() if name in trained}
        buffers = {name: leaf for name, leaf in tensors.items() if name not in trained}
        key = random.key(self._seed, batch.y.device)
        self.state = self.algorithm.start(params, buffers, key, self._problem)

    def _write_back(self, state: State) -> None:
        mine = {**dict(self.module.named_parameters()), **dict(self.module.named_buffers())}
        for name, leaf in {**state.params, **{n: state.buffers[n] for n in self._problem.live}}.items():
            mine[self._names[name]].copy_(leaf)


def _network(module: nn.Module, head: str | None) -> tuple[Network, dict[str, str]]:
    """The module as features and head, and the module's own name for each of the network's tensors."""
    skeleton = copy.deepcopy(module)
    last: nn.Module = nn.Identity()
    if head is not None:
        try:
            last = skeleton.get_submodule(head)
        except AttributeError as error:
            names = ", ".join(name for name, _ in module.named_children())
            raise UsageError(f"Expected the name of a layer ({names}, ...) as head; found {head!r}.") from error
        skeleton.set_submodule(head, nn.Identity())
    network = Network(skeleton, last)
    tensors = [*dict(network.named_parameters()), *dict(network.named_buffers())]
    own = {name: _own_name(name, head) for name in tensors}
    return network, own


def _own_name(name: str, head: str | None) -> str:
    part, _, rest = name.partition(".")
    return f"{head}.{rest}" if part == "head" else rest


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
