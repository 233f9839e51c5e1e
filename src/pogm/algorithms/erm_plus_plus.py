"""ERM++: ERM with a warm-up of the classifier and an average of the weights."""

from dataclasses import dataclass

import torch
from torch import Tensor

from pogm._system.errors import UsageError
from pogm.algorithms.annealing import change_lr
from pogm.algorithms.base import Algorithm
from pogm.core.batch import Batch
from pogm.core.hyperparameters import Large, Power, hyper
from pogm.core.model import over_samples
from pogm.core.problem import Problem
from pogm.core.state import TRAINED, Metrics, State
from pogm.core.trees import Params


@dataclass(frozen=True)
class ERMPlusPlus(Algorithm):
    r"""ERM++ (Teterwak et al., WACV 2025): ERM, first of the classifier alone, and the average of the later weights.

    .. math:: \theta_{t+1} = \operatorname{Adam}(\theta_t, \nabla \tfrac1K \sum_k L_k), \qquad
        \bar\theta_t = \frac{1}{t - T + 1} \sum_{s=T}^{t} \theta_s \quad (t \ge T), \qquad
        \bar\theta_t = \theta_t \quad (t < T)

    The first ``linear_anneal_iters`` steps train only the classifier, with the learning rate ``linear_lr``; then
    Adam is reset. T is ``average_anneal_iters`` − 1. The weights of the run, which are evaluated and saved, are the
    averages; the weights that are trained are in the memory. Batch-norm statistics that are not frozen are those of a
    pass with the averages. Differences from DomainBed: it also lowers the learning rate when the validation loss stops
    to decrease, in a first run that determines the schedule of a second run on all data; a method of pogm sees no
    validation data, so this is left out, and so is the optimizer LARS. On small images we keep the learning rate in the
    warm-up, because its ``linear_lr`` is for pretrained networks. DomainBed averages batch-norm statistics too, before
    its pass with the averages; its ``linear_steps`` of 500 mean 501 steps.

    Both parts can be switched off; without them this is ERM. With frozen batch norm and one learning rate, this is ERM
    with the modifiers `LPFT` (``linear_anneal_iters``) and `SMA` (``start_step`` = T). Two more parts of the published
    recipe are settings of the run: ``freeze_bn=false`` and the initial weights.

    Args:
        linear_lr: Learning rate of the warm-up; 0 keeps the learning rate.
        linear_anneal_iters: Number of steps of the warm-up.
        average_anneal_iters: Number of steps before the average starts.
        warm_up: Whether the first steps train only the classifier.
        average: Whether the weights of the run are averages.
    """

    linear_lr: float = hyper(0.0, large=Large(5e-5, Power(10, -5, -3.5)), least=0)
    linear_anneal_iters: int = hyper(501, least=0)
    average_anneal_iters: int = hyper(600, least=1)
    warm_up: bool = hyper(True, added_later=True)
    average: bool = hyper(True, added_later=True)

    def restart_at(self) -> int:
        """Reset Adam after the warm-up."""
        return self._warm_up_steps

    @property
    def _warm_up_steps(self) -> int:
        return self.linear_anneal_iters if self.warm_up else 0

    def start(self, params: Params, buffers: Params, key: Tensor, problem: Problem) -> State:
        """Return a state with a copy of the weights, which is trained."""
        for name in params:
            if not name.startswith(("features.", "head.")):
                raise UsageError(
                    f"Expected a network with a featurizer and a classifier only, because ERM++ averages its weights; "
                    f"found the weights {name}. Leave out the modifier that added them, such as CIRL or MIRO."
                )
        if self._warm_up_steps and not any(name.startswith("head.") for name in params):
            raise UsageError(
                "Expected a network with a head, because ERM++ trains it first; found none. Name the last layer, for "
                "example Learner(module, ERMPlusPlus(), head='fc'), or set warm_up=false."
            )
        state = super().start(params, buffers, key, problem)
        trained = {TRAINED + name: leaf.clone() for name, leaf in params.items()}
        return state._replace(memory=trained)

    def step(self, state: State, batches: list[Batch], problem: Problem) -> tuple[State, Metrics]:
        """Update the weights that are trained, then the average."""
        (batch,) = batches
        trained = {name: state.memory[TRAINED + name] for name in state.params}
        warm_up = state.step < self._warm_up_steps
        current = change_lr(problem, warm_up, self.linear_lr)
        after, metrics = super().step(state._replace(params=trained), batches, current)
        moved = {
            name: leaf if name.startswith("head.") else torch.where(warm_up, trained[name], leaf)
            for name, leaf in after.params.items()
        }

        memory = {TRAINED + name: leaf for name, leaf in moved.items()}
        if not self.average:
            return after._replace(params=moved, memory=memory), metrics
        count = (after.step - self.average_anneal_iters + 1).clamp(min=0)  # weights in the average so far
        average = {
            name: torch.lerp(leaf, moved[name], (1 / (1 + count)).to(leaf.dtype)) if leaf.is_floating_point() else leaf
            for name, leaf in state.params.items()
        }
        averaged = after._replace(params=average, buffers=state.buffers, memory=memory)
        if problem.live:
            model = problem.model(average, state)
            over_samples(model, batch.x)
            averaged = averaged._replace(buffers=state.buffers | problem.live_buffers(model))
        return averaged, metrics
