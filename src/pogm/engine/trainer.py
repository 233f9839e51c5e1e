"""The training loop."""

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pogm._system.fault_injection import fault_point
from pogm.diagnostics.probe import Rounds, round_means
from pogm.engine.session import Session

Metrics = dict[str, float | list[float]]


@dataclass(frozen=True)
class Schedule:
    """Length of a run, and when to evaluate: after minibatch 0, then regularly, and after the last one."""

    steps: int  # minibatches of each domain
    evaluate_every: int  # minibatches

    def points(self) -> list[int]:
        """Return the numbers of the minibatches after which to evaluate."""
        regular = list(range(0, self.steps, self.evaluate_every))
        return regular if regular[-1] == self.steps - 1 else [*regular, self.steps - 1]

    def rounds(self, minibatches: int) -> list[int]:
        """Return the number of complete rounds at each of these points, for rounds of ``minibatches``."""
        return [(point + 1) // minibatches for point in self.points()]


@dataclass(frozen=True)
class Evaluation:
    """Results of one evaluation. Lists have one entry for each run of the session."""

    step: int  # number of the minibatch
    scores: list[dict[str, list[float]]]  # for each run, each score on each domain and split
    metrics: list[Metrics]  # means since the last evaluation
    diverged: list[str]  # why the run diverged; empty if it did not
    seconds_per_step: float | None  # per minibatch; None if there was none since the last evaluation
    rounds: list[Rounds | None]  # measurements of the probe since the last evaluation; None without a probe

    @property
    def accuracies(self) -> list[list[float]]:
        """For each run, its first score on each domain and split: the accuracy, or the R² of a regression."""
        return [next(iter(found.values())) for found in self.scores]


def train(
    session: Session,
    schedule: Schedule,
    *,
    after: int = -1,
    stop: Callable[[], bool] = lambda: False,
    on_round: Callable[[int], None] = lambda count: None,
) -> Iterator[Evaluation | None]:
    """Train, and yield an evaluation at every point of the schedule.

    A round consists of ``algorithm.minibatches`` minibatches. A round that would end after the next point starts after
    the evaluation, because weights change only at the end of a round.

    Args:
        session: Session to train.
        schedule: Length of the run and points of evaluation.
        after: Last point that was evaluated before a resume; −1 for none.
        stop: Called after every round. If it returns True, ``train`` yields None and ends.
        on_round: Called at the start and after every round with the number of minibatches, some of which may
            wait in the queue of the GPU.
    """
    minibatches = session.tasks[0].algorithm.minibatches
    probe = session.tasks[0].probe
    rounds = int(session.train_state.state.step.reshape(-1)[0])
    on_round(rounds * minibatches)
    evaluated = (after + 1) // minibatches  # rounds up to the last evaluation
    for point in schedule.points():
        if point <= after or (point + 1) // minibatches < rounds:  # passed; a changed schedule has new points there
            continue
        start_time, start_rounds = time.monotonic(), rounds
        while (rounds + 1) * minibatches <= point + 1:
            rounds += 1
            session.step(probing=probe.measures(rounds))
            fault_point("step")
            on_round(rounds * minibatches)
            if stop():
                yield None
                return
        overflowed = session.diverged()  # synchronises with the device, so the time below includes all of its work
        seconds, trained = time.monotonic() - start_time, (rounds - start_rounds) * minibatches
        scores, metrics, observed = session.scores(), session.fetch_metrics(), session.observe(point)
        measured = session.fetch_rounds()
        probed: list[Metrics] = [{} if one is None else round_means(one) for one in measured]
        yield Evaluation(
            step=point,
            scores=scores,
            metrics=[one | loss | means for one, loss, means in zip(metrics, observed, probed, strict=True)],
            diverged=[_divergence(*found, rounds - evaluated) for found in zip(overflowed, metrics, strict=True)],
            seconds_per_step=seconds / trained if trained else None,
            rounds=measured,
        )
        evaluated = rounds


def _divergence(overflowed: bool, metrics: Metrics, rounds: int) -> str:
    """Return why a run diverged; empty if it did not.

    A round that is skipped because its direction is zero is no divergence: its norm is finite.

    Args:
        overflowed: Weights are not finite.
        metrics: Means of the metrics since the last evaluation, over the rounds in which they were finite.
        rounds: Number of rounds since the last evaluation.
    """
    if overflowed:
        return "NaN or infinity in the weights"
    if rounds and _is_nan(metrics.get("norm")) and metrics.get("skipped") == 1:
        return "only skipped rounds since the last evaluation, with trajectories or updates that are not finite"
    if rounds and _is_nan(metrics.get("loss")):
        return "no finite loss since the last evaluation"
    return ""


def _is_nan(value: object) -> bool:
    return isinstance(value, float) and math.isnan(value)


def final(session: Session) -> list[Evaluation | None]:
    """Return the final evaluation of each run, at the step that a modifier chose; None without such a modifier."""
    return [found and Evaluation(found[0], [found[1]], [{}], [""], None, [None]) for found in session.final()]
