"""The only training loop."""

import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass

from pogm._system.fault_injection import fault_point
from pogm.diagnostics.probe import Rounds, round_means
from pogm.engine.session import Session

Metrics = dict[str, float | list[float]]


@dataclass(frozen=True)
class Schedule:
    """How long to train and when to look: after minibatch 0, every so many, and the last."""

    steps: int  # minibatches of each domain
    evaluate_every: int

    def points(self) -> list[int]:
        """The minibatches after which to evaluate."""
        regular = list(range(0, self.steps, self.evaluate_every))
        return regular if regular[-1] == self.steps - 1 else [*regular, self.steps - 1]

    def rounds(self, minibatches: int) -> list[int]:
        """How many rounds of so many minibatches are whole at each of these points."""
        return [(point + 1) // minibatches for point in self.points()]


@dataclass(frozen=True)
class Evaluation:
    """What was seen at one point, for each trial of the session."""

    step: int
    accuracies: list[list[float]]
    metrics: list[Metrics]
    diverged: list[bool]  # whether its weights have left the finite numbers
    seconds_per_step: float | None  # None where no minibatch was trained on since the last evaluation
    rounds: list[Rounds | None]  # what a probe measured since the last evaluation; None without one


def train(
    session: Session, schedule: Schedule, *, after: int = -1, stop: Callable[[], bool] = lambda: False
) -> Iterator[Evaluation | None]:
    """Train, and give an evaluation at every point later than ``after``; give None, and end, when asked to stop.

    A round takes ``minibatches`` of them. One that would end after the point waits: until it is whole the weights
    do not change, so the evaluation sees what a method that keeps copies would predict with.
    """
    minibatches = session.tasks[0].algorithm.minibatches
    probe = session.tasks[0].probe
    rounds = int(session.train_state.state.step.reshape(-1)[0])
    for point in schedule.points():
        if point <= after:
            continue
        began, first = time.monotonic(), rounds
        while (rounds + 1) * minibatches <= point + 1:
            rounds += 1
            session.step(probing=probe.measures(rounds))
            fault_point("step")
            if stop():
                yield None
                return
        diverged = session.diverged()  # waits for the device: the clock below has seen all of the work
        seconds, trained = time.monotonic() - began, (rounds - first) * minibatches
        accuracies, metrics, observed = session.accuracies(), session.fetch_metrics(), session.observe(point)
        measured = session.fetch_rounds()
        probed: list[Metrics] = [{} if one is None else round_means(one) for one in measured]
        yield Evaluation(
            step=point,
            accuracies=accuracies,
            metrics=[mine | more | means for mine, more, means in zip(metrics, observed, probed, strict=True)],
            diverged=diverged,
            seconds_per_step=seconds / trained if trained else None,
            rounds=measured,
        )


def final(session: Session) -> list[Evaluation]:
    """Of each trial: the evaluation that stands for its run, at a step of its own; none where no modifier has one."""
    return [Evaluation(step, [accuracies], [{}], [False], None, [None]) for step, accuracies in session.final()]
