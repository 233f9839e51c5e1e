"""Learner: trains any module with an algorithm of this package, inside a user's own training loop."""

import copy
import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch
from torch import Tensor, nn

from pogm._system.errors import UsageError, unknown_name_error
from pogm.algorithms.base import Algorithm
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.compilation import compiling
from pogm.core.losses import LossFunction, find_loss
from pogm.core.optimizers import Optimizer
from pogm.core.problem import Problem, live_buffers
from pogm.core.state import Metrics, Purpose, State
from pogm.core.trees import Params
from pogm.engine.per_domain import gradient, map_by_loop
from pogm.learner.capture import GraphedRounds, Memory
from pogm.learner.inputs import Samples, check_finite
from pogm.learner.minibatches import MinibatchReader
from pogm.learner.network import Forward, LearnerNetwork
from pogm.learner.optimizer import Group, Schedule, group_rates, make_optimizer, make_schedule, read_groups
from pogm.learner.saved_state import (
    check_module,
    check_settings,
    get_generators,
    load_samples,
    load_tensors,
    save_samples,
    set_generators,
)
from pogm.modifiers.base import Modifier


class Learner:
    """Trains a module with an algorithm, one minibatch of every domain at a time.

    Each step reads the weights of the module and writes the new ones in place. So you can load a checkpoint, freeze
    layers (``requires_grad`` and ``eval``) and change the module in other ways between steps.

    Args:
        module: Module that returns the outputs, for example logits.
        algorithm: Algorithm that trains it. Algorithms that build their own network (ADRMX, ARM, CDANN, DANN, MADG,
            MTL, SagNet, SelfReg, URM) raise an error.
        loss: Loss of the task: "cross_entropy", "bce" (several labels per sample), "mse", "l1", "huber", or a function
            of outputs [N, ...] and targets [N, ...] that returns one value per sample.
        optimizer: "adam", "adamw", "sgd", or an optimizer of ``pogm.core.optimizers`` (default: that of the algorithm,
            in most cases Adam). In methods on trajectories, every copy has such an optimizer.
        lr: Learning rate (default: 0.001).
        weight_decay: Weight decay (default: 0, for "adamw" 0.01).
        momentum: Momentum of "sgd".
        groups: Parameter groups as in torch: ``{"params": module.fc.parameters(), "lr": 0.01, "weight_decay": 0}``.
        clip_norm: Largest norm of a gradient; longer gradients are scaled to it.
        schedule: Function from the number of finished steps to a factor of the learning rate, or "cosine".
        steps: Number of steps after which the cosine schedule reaches 0.
        precision: "bf16" for mixed precision with bfloat16 (default: the dtype of the module).
        head: Name of the last layer, for algorithms that treat the classifier and the features differently.
        forward: Function of module and inputs that returns the outputs, for modules that take a dictionary or return an
            object: ``lambda module, x: module(**x).logits``.
        target: Key of the targets in minibatches that are dictionaries.
        domains: Names of all domains (default: the domains of the first minibatch).
        modifiers: Modifiers of the algorithm.
        compile: Compile parts of the step by torch.compile and, on a GPU, replay the step as a CUDA graph.
        seed: Seed of random numbers.

    Example:
        >>> import torch
        >>> from pogm import POGM, Learner
        >>> module = torch.nn.Linear(4, 1)
        >>> learner = Learner(module, POGM(), loss="huber", optimizer="adamw")
        >>> sites = {"Basel": (torch.randn(8, 4), torch.randn(8)), "Bern": (torch.randn(5, 4), torch.randn(5))}
        >>> metrics = learner.step(sites)
    """

    def __init__(
        self,
        module: nn.Module,
        algorithm: Algorithm,
        *,
        loss: str | LossFunction = "cross_entropy",
        optimizer: str | Optimizer | None = None,
        lr: float | None = None,
        weight_decay: float | None = None,
        momentum: float | None = None,
        groups: Sequence[Group] = (),
        clip_norm: float | None = None,
        schedule: str | Schedule | None = None,
        steps: int | None = None,
        precision: str | None = None,
        head: str | None = None,
        forward: Forward | None = None,
        target: str = "labels",
        domains: Sequence[Hashable] | None = None,
        modifiers: Sequence[Modifier] = (),
        compile: bool = False,
        seed: int = 0,
    ):
        self.module = module
        self.algorithm = algorithm
        self.modifiers = tuple(modifiers)
        _check_instances(algorithm, self.modifiers)
        self.loss = find_loss(loss)
        self.loss.check_method((algorithm, *self.modifiers))
        _check_modifiers(self.modifiers)
        if precision not in (None, "bf16"):
            raise unknown_name_error("a precision", precision, ["bf16"])
        self.state: State | None = None  # created with the first minibatch, which has the number of domains
        self._reader = MinibatchReader(self.loss, target, domains)
        self._optimizer = make_optimizer(algorithm, optimizer, lr, weight_decay, momentum, clip_norm)
        self._schedule = make_schedule(schedule, steps)
        self._groups = read_groups(groups)
        self._autocast = torch.bfloat16 if precision == "bf16" else None
        self._compile = compile
        self._key = random.key(seed)
        self._network = LearnerNetwork(module, head, forward, self.modifiers)
        self._memory: Memory = {}
        self._waiting: list[Batch] = []
        self._minibatches = 0
        self._finished = 0  # steps
        self._targets: tuple[torch.Size, torch.dtype] | None = None  # shape and type of the last targets
        self._outputs = torch.Size()  # shape of the outputs for one sample
        self._problem: Problem  # created with the state
        self._graphed = GraphedRounds()

    @property
    def domains(self) -> tuple[Hashable, ...] | None:
        """Names of all domains; None before the first minibatch, if none were given."""
        return self._reader.domains

    def step(self, batches: Any, domains: Any = None) -> Metrics | None:
        """Train on one minibatch of each domain.

        Some algorithms use several minibatches per step, for example POGM with ``inner_steps`` above 1. They update the
        weights when they have all of them.

        Args:
            batches: One minibatch per domain, as a list or by the name of the domain: (x, y), (x, y, meta), or a
                dictionary with the targets under the key ``target``. Or a `Batch` [K, B, ...]. Or, with ``domains``,
                one minibatch with samples of several domains. Domains may have different numbers of samples: smaller
                ones are filled up with their own samples. For a domain that is missing or None, the last minibatch of
                this domain is used again.
            domains: Domain of every sample, if ``batches`` is one minibatch. Keep these labels on the CPU.

        Returns:
            The metrics of the algorithm, as tensors; None if it waits for more minibatches, or for the first minibatch
            of a domain.

        Raises:
            UsageError: The minibatches do not fit the module or the loss.
        """
        reader = copy.copy(self._reader)  # a minibatch that is refused has no effect
        batch = reader.read(batches, domains, self._network.first_tensor(), self._key, self._minibatches)
        if batch is not None:
            assert reader.domains is not None
            self._check(batch, reader.domains)
        self._reader = reader
        if batch is None:
            return None
        assert self.state is not None
        for i, modifier in enumerate(self.modifiers):
            key = random.fold(self.state.random_key(Purpose.MODIFIER, self._minibatches), i)
            batch = modifier.batch(batch, key, self._problem.num_classes)
        self._minibatches += 1
        self._waiting.append(batch)
        if len(self._waiting) < self.algorithm.minibatches:
            return None

        waiting, self._waiting = self._waiting, []
        if self._network.copy_modes():
            self._problem = replace(self._problem, live=live_buffers(self._network.module))
        self._set_lr()
        params, buffers = self._network.tensors()
        self._check_params(params)
        current = self.state._replace(params=params, buffers=buffers)
        with torch.no_grad(), compiling(self._compile):
            if self._compile and trees.leaves(params)[0].is_cuda:
                condition = self._network.modes(), self.algorithm.phase_at(self._finished)
                after = self._graphed.run(self._round, condition, current, self._memory, waiting)
            else:
                after = self._round(current, self._memory, waiting)
            self.state, self._memory, metrics = after
            self._network.write_to(self.module, {**self.state.params, **self._problem.live_buffers(self.state)})
        self._finished += 1
        return metrics

    def evaluated_module(self) -> nn.Module:
        """Return a copy of the module with the weights to evaluate: the averages of a modifier such as SMA.

        The module itself has the current weights. Without such a modifier, the copy has them, too.
        """
        found, index = copy.deepcopy(self.module), Modifier.find_evaluated(self.modifiers)
        if index is not None and self.state is not None:
            params, buffers = self._network.tensors()
            current = self.state._replace(params=params, buffers=buffers)
            state = self.modifiers[index].evaluated(self._memory[str(index)], current)
            self._network.write_to(found, {**state.params, **state.buffers})
        return found

    def state_dict(self) -> dict[str, Any]:
        """Return a copy of everything that changes during training: for ``torch.save``.

        It contains the weights of the module, the state of the algorithm, the optimizer and the modifiers, minibatches
        that wait for the next step, and the states of torch's random number generators (for layers such as dropout). A
        Learner that loads it continues with bit-identical results.
        """
        device = self._network.first_tensor().device
        saved: dict[str, Any] = {
            "settings": self._settings(),
            "module": {name: leaf.detach().clone() for name, leaf in self.module.state_dict().items()},
            "rng": get_generators(device),
            "started": self.state is not None,
        }
        if self.state is not None:
            tree = {"optimizer": self.state.optimizer, "memory": self.state.memory, "modifiers": self._memory}
            saved |= {
                "tensors": {name: leaf.clone() for name, leaf in trees.named_leaves(tree)},
                "step": self.state.step.clone(),
                "finished": self._finished,
                "outputs": list(self._outputs),
            }
        return saved | {
            "key": self._key.clone(),
            "minibatches": self._minibatches,
            "waiting": [save_samples(Samples(*batch)) for batch in self._waiting],
            **self._reader.state_dict(),
        }

    def load_state_dict(self, saved: Mapping[str, Any]) -> None:
        """Continue from a saved state, which also sets the weights of the module and torch's generators.

        Raises:
            UsageError: The state belongs to another algorithm, optimizer, loss or module. Nothing is changed then.
        """
        check_settings(saved, self._settings(), None if self.domains is None else list(self.domains))
        check_module(self.module, saved["module"])
        device = self._network.first_tensor().device
        restored = self._restore(saved, device) if saved["started"] else None
        self.module.load_state_dict(saved["module"])
        set_generators(saved["rng"], device)
        self._reader.load_state_dict(saved, device)
        self._key, self._minibatches = saved["key"].cpu().clone(), saved["minibatches"]
        self._waiting = [Batch(*load_samples(one, device)) for one in saved["waiting"]]
        self.state, self._finished, self._graphed = None, 0, GraphedRounds()
        if restored is not None:
            self.state, self._memory, self._problem = restored
            self._outputs, self._finished = torch.Size(saved["outputs"]), saved["finished"]

    def _settings(self) -> dict[str, str]:
        """Return what a saved state must have in common with the Learner that loads it."""
        return {
            "algorithm": repr(self.algorithm),
            "modifiers": repr(list(self.modifiers)),
            "loss": self.loss.name,
            "optimizer": type(self._optimizer).__name__,
        }

    def _restore(self, saved: Mapping[str, Any], device: torch.device) -> tuple[State, Memory, Problem]:
        """Return the state, the memory of the modifiers and the problem of a saved state; check its tensors."""
        problem = self._build_problem(len(saved["domains"]), torch.Size(saved["outputs"]))
        template, memory = self._first_state(problem, device)
        tree = {"optimizer": template.optimizer, "memory": template.memory, "modifiers": memory}
        tree = load_tensors(tree, saved["tensors"])
        state = template._replace(
            optimizer=tree["optimizer"],
            memory=tree["memory"],
            step=saved["step"].to(device).clone(),
            key=saved["key"].to(device).clone(),
        )
        return state, tree["modifiers"], problem

    def _check(self, batch: Batch, domains: Sequence[Hashable]) -> None:
        """Check that a minibatch of all domains fits the module and the loss; create the state with the first one."""
        if self.state is None:
            self._start(batch, domains)
        self._check_targets(batch.y)
        if not trees.leaves(batch.x)[0].is_cuda:
            check_finite(batch.x, domains)

    def _start(self, batch: Batch, domains: Sequence[Hashable]) -> None:
        """Check the first minibatch, and create the problem and the state."""
        count = batch.y.shape[0]
        if count < self.algorithm.min_domains:
            raise UsageError(
                f"Expected minibatches of at least {self.algorithm.min_domains} domains for "
                f"{type(self.algorithm).__name__}; found {count}. Pass one (x, y) per domain."
            )
        changing = [type(modifier).__name__ for modifier in self.modifiers if modifier.changes_batches]
        if changing and not (isinstance(batch.x, Tensor) and batch.x.is_floating_point()):
            raise UsageError(
                f"Expected inputs that are one tensor of floats for {', '.join(changing)}; found "
                f"{batch.x.dtype if isinstance(batch.x, Tensor) else type(batch.x).__name__}. Leave the modifier out."
            )
        check_finite(batch.x, domains)
        outputs = self._network.inspect(trees.index(batch.x, 0))
        self.loss.check(outputs, batch.y[0])
        self.loss.check_values(outputs, batch.y.flatten(0, 1))
        needs_classes = self.algorithm.needs_classes or any(one.needs_classes for one in self.modifiers)
        if outputs.ndim != 2 and needs_classes:
            raise UsageError(
                f"Expected outputs [N, classes] for {type(self.algorithm).__name__}; found {list(outputs.shape)}. "
                "Choose another algorithm."
            )
        self._outputs = outputs.shape[1:]
        self._problem = self._build_problem(count, self._outputs)
        self.state, self._memory = self._first_state(self._problem, batch.y.device)

    def _first_state(self, problem: Problem, device: torch.device) -> tuple[State, Memory]:
        """Return the state of the algorithm before the first step, and the memory of the modifiers."""
        params, buffers = self._network.tensors()
        state = self.algorithm.start(params, buffers, self._key.to(device), problem)
        return state, {str(i): modifier.start(state, problem) for i, modifier in enumerate(self.modifiers)}

    def _build_problem(self, count: int, outputs: torch.Size) -> Problem:
        self._network.copy_modes()
        params, _ = self._network.tensors()
        return Problem(
            network=self._network.module,
            optimizer=self._scheduled_optimizer(params),
            num_domains=count,
            num_classes=outputs[0] if outputs else 1,
            gradient=gradient,
            each_domain=map_by_loop,
            passes_views=True,
            penalties=Modifier.penalties(self.modifiers),
            custom_risks=Modifier.find_risks(self.modifiers),
            autocast=self._autocast,
            live=live_buffers(self._network.module),
            mixes=any(modifier.mixes_samples for modifier in self.modifiers),
            loss=self.loss,
        )

    def _scheduled_optimizer(self, params: Params) -> Any:
        """Return the optimizer; with a schedule or groups, its rates are tensors that `_set_lr` can change."""
        optimizer: Any = self._optimizer
        if self._groups:
            optimizer = replace(optimizer, **group_rates(self._groups, params, optimizer, self._network.originals()))
        if self._schedule is not None:
            like = next(iter(params.values()))
            base = optimizer.lr
            if not isinstance(base, Tensor):  # as exact as a Python number
                base = torch.tensor(base, dtype=torch.float64, device=like.device)
            self._base_lr, self._lr = base, base.clone()
            optimizer = replace(optimizer, lr=self._lr)
        return optimizer

    def _set_lr(self) -> None:
        """Set the learning rate of this step, in place: a CUDA graph reads it from the same memory."""
        if self._schedule is None:
            return
        factor = float(self._schedule(self._finished))
        if not (math.isfinite(factor) and factor >= 0):
            raise UsageError(
                f"Expected a factor of at least 0 from the schedule; found {factor} for step {self._finished}."
            )
        torch.mul(self._base_lr, factor, out=self._lr)

    def _check_targets(self, y: Tensor) -> None:
        """Check targets by shape and type, if these have changed; and by value, unless this synchronises with a GPU."""
        found, outputs = (y.shape[2:], y.dtype), torch.empty(y.shape[1], *self._outputs, device="meta")
        if found != self._targets and self.loss.targets != "any":
            self.loss.check(outputs, y[0])
        if not y.is_cuda:
            self.loss.check_values(outputs, y.flatten(0, 1))
        self._targets = found

    def _check_params(self, params: Params) -> None:
        assert self.state is not None
        if params.keys() != self.state.params.keys():
            changed = sorted(params.keys() ^ self.state.params.keys())
            raise UsageError(
                "Expected the same trained weights (requires_grad) in every step; found a change of "
                f"{', '.join(changed[:8])}. Create a new Learner after you freeze or unfreeze layers."
            )

    def _round(self, state: State, memory: Memory, batches: list[Batch]) -> tuple[State, Memory, Metrics]:
        """Run one step of the algorithm and of the modifiers."""
        phase = self.algorithm.phase_at(self._finished)
        problem = self._problem if phase is None else replace(self._problem, phase=phase)
        state, metrics = self.algorithm.step(state, batches, problem)
        memory, state = Modifier.run_after(self.modifiers, memory, state, batches, self._problem)
        return state, memory, metrics


def _check_instances(algorithm: Any, modifiers: Sequence[Any]) -> None:
    for value, base in ((algorithm, Algorithm), *((modifier, Modifier) for modifier in modifiers)):
        if not isinstance(value, base):
            example = "POGM()" if base is Algorithm else "Mixup()"
            found = f"the class {value.__name__}" if isinstance(value, type) else type(value).__name__
            raise UsageError(f"Expected an object of a subclass of {base.__name__}, such as {example}; found {found}.")


def _check_modifiers(modifiers: Sequence[Modifier]) -> None:
    """Raise a `UsageError` for modifiers that a Learner cannot apply."""
    adapting = [type(modifier).__name__ for modifier in modifiers if modifier.changes_only_prediction]
    if adapting:
        raise UsageError(
            "Expected modifiers that change training, because a Learner does not predict; found "
            f"{', '.join(adapting)}. Train it as a trial, for example with pogm run --with {adapting[0]}."
        )
    if Modifier.needs_validation_loss(modifiers):
        raise UsageError(
            "Expected modifiers that need no validation images, because a Learner has none; found one that does, "
            f"among {', '.join(type(modifier).__name__ for modifier in modifiers)}. Leave it out."
        )
    if (index := Modifier.find_final(modifiers)) is not None:
        raise UsageError(
            "Expected modifiers that choose no final weights, because a Learner does not know when training ends; "
            f"found {type(modifiers[index]).__name__}. Leave it out, or let it override evaluated()."
        )
    Modifier.find_evaluated(modifiers)  # raises an error if there are two
