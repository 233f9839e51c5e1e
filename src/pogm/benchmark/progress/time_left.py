"""Estimates of the time left: of items and bytes, of one run, and of many runs."""

from bisect import bisect_left
from collections.abc import Mapping
from typing import Protocol

from pogm.engine.trainer import Schedule

BURST_SECONDS = 0.5  # items of a batch finish together, within this time
LEAST_SHARE = 0.01  # of the work of a sweep, for an estimate from the first finished work alone


class TimeEstimate(Protocol):
    """Estimate of the time left."""

    def seconds(self, now: float) -> float | None:
        """Return the estimate in seconds at time ``now``; None if it is not known."""


class RemainingTime:
    """Estimate of the time left from finished work: items or bytes.

    The rate is that since the first finished work, because the time before it contains start-up and compilation. Items
    that finish together with the first one belong to it. Until something else has finished, the rate is that since the
    start. Work that was done before the start does not count for the rate.

    Args:
        total: Work in total; None if it is not known yet.
        now: Time of the start in seconds.
    """

    def __init__(self, total: float | None, now: float):
        self.start = self.last = now
        self.total = total
        self.done = self.finished = 0.0  # work: all of it, and that since the start
        self.first_time: float | None = None  # of finished work
        self.base = (now, 0.0)  # time and work at the end of the first burst

    def add(self, work: float, now: float, is_new: bool = True) -> None:
        """Count finished work; ``is_new`` is False for work that was done before the start."""
        self.done += work
        if is_new and work > 0:
            self.finished += work
            self.last = now
            if self.first_time is None:
                self.first_time = now
            if now - self.first_time <= BURST_SECONDS:
                self.base = (now, self.finished)
        elif not self.finished:
            self.start = self.last = now

    def seconds(self, now: float) -> float | None:
        """Return the estimate in seconds at time ``now``; None before the first work is finished."""
        left = None if self.total is None else self.total - self.done
        if left is None or (left > 0 and not self.finished):
            return None
        if left <= 0:
            return 0.0
        time, work = self.base if self.finished > self.base[1] else (self.start, 0.0)
        seconds_per_work = max(self.last - time, 1e-9) / (self.finished - work)
        return max(left * seconds_per_work - (now - self.last), 0.0)


class RemainingTransferTime(RemainingTime):
    """Estimate of the time left of a download, which may continue an earlier one or begin again.

    Args:
        now: Time of the start in seconds.
    """

    def __init__(self, now: float):
        super().__init__(None, now)
        self.begins: bool | None = None  # True if an attempt has received nothing yet; None before the first one

    def receive(self, received: int, total: int | None, now: float) -> None:
        """Set the number of bytes received so far, and in total if it is known.

        The first call and a call without new bytes begin an attempt. The time before it and its first bytes do not
        count for the rate.
        """
        self.total = total
        if self.begins is None or received <= self.done:
            self.done, self.begins = received, True
            return
        if self.begins:
            pause = now - self.last
            self.start, self.last, self.base = self.start + pause, now, (self.base[0] + pause, self.base[1])
        self.add(received - self.done, now, is_new=not self.begins)
        self.begins = False


class RemainingRunTime:
    """Estimate of the time left of one run, from its minibatches and its evaluations.

    Both are timed separately, so that the estimate is right long before the second evaluation. The first round after
    the start and minibatches up to the first evaluation are not used: their time contains start-up and compilation.

    Args:
        schedule: Length of the run and its evaluations.
    """

    def __init__(self, schedule: Schedule):
        self.points, self.steps = schedule.points(), schedule.steps
        self.count = self.evaluated = 0  # minibatches: in total, and up to the last evaluation
        self.last = self.evaluation_end = 0.0
        self.evaluation_seconds: float | None = None  # of the last evaluation
        self.trained, self.train_seconds = 0, 0.0  # between evaluations
        self.timed: tuple[int, float] | None = None  # minibatches and time from which rounds are timed

    def start(self, count: int, now: float) -> None:
        """Begin, or continue after this number of minibatches."""
        self.count = self.evaluated = count
        self.last = self.evaluation_end = now

    def add_round(self, count: int, now: float) -> None:
        """Set the number of minibatches that are trained."""
        self.count, self.last = count, now
        if self.timed is None:
            self.timed = count, now

    def add_evaluation(self, count: int, seconds_per_step: float | None, now: float) -> None:
        """Set the number of minibatches at the end of an evaluation, and the time of each since the one before."""
        trained = count - self.evaluated
        train_seconds = (seconds_per_step or 0.0) * trained
        is_first = self.evaluation_seconds is None
        self.evaluation_seconds = max(now - self.evaluation_end - train_seconds, 0.0)
        if not is_first:
            self.trained += trained
            self.train_seconds += train_seconds
        self.count = self.evaluated = count
        self.last = self.evaluation_end = now
        self.timed = count, now

    def seconds(self, now: float) -> float | None:
        """Return the estimate in seconds at time ``now``; None before the first minibatch is timed."""
        if self.evaluated >= self.steps:
            return 0.0
        count, time = self.timed or (self.count, self.last)
        trained = self.trained + self.count - count
        if not trained:
            return None
        per_step = (self.train_seconds + self.last - time) / trained
        evaluations = len(self.points) - bisect_left(self.points, self.evaluated)
        total = (self.steps - self.count) * per_step + evaluations * (self.evaluation_seconds or 0.0)
        return max(total - (now - self.last), 0.0)


class RemainingSweepTime:
    """Estimate of the time left of many runs, from the finished part of each and from their costs.

    The costs may change, because they are measured while the runs train. The rate is the cost of what was finished
    since the first new work, divided by the time since then: the time before contains the start of the processes. Until
    there is such a rate, the first new work gives an estimate if it is more than a hundredth of all work, and at most
    that of all runs in a row. The estimate is at least the rest of the longest run.

    Args:
        parts: Part of each run that was finished before, by id.
        now: Time of the start in seconds.
    """

    def __init__(self, parts: Mapping[str, float], now: float):
        self.parts = dict(parts)
        self.start = self.base = (now, self.parts)  # time and finished parts: at the start, after the first burst
        self.first_time: float | None = None  # of new work
        self.last = now  # time of the last work
        self.estimate: tuple[float, float | None] = now, None  # time, and the seconds that were left

    def update(self, parts: Mapping[str, float], costs: Mapping[str, float], in_seconds: bool, now: float) -> None:
        """Set the finished part of every run.

        Args:
            parts: Finished parts by id.
            costs: Costs by id of the runs that have not failed.
            in_seconds: The costs are seconds; otherwise they are relative to each other.
            now: Time in seconds.
        """
        if any(part > self.parts[name] for name, part in parts.items()):
            self.last, self.parts = now, dict(parts)
            self.first_time = now if self.first_time is None else self.first_time
            if now - self.first_time <= BURST_SECONDS:
                self.base = now, self.parts
        rests = [cost * (1 - self.parts[name]) for name, cost in costs.items()]
        if not any(rests):
            self.estimate = now, 0.0
            return
        is_first = self.base[1] is self.parts  # the time since the start contains the start of the processes
        start, base = self.start if is_first else self.base
        finished = sum(cost * (self.parts[name] - base[name]) for name, cost in costs.items())
        if finished > (LEAST_SHARE * sum(costs.values()) if is_first else 0):
            rest = sum(rests) * (self.last - start) / finished
            if in_seconds:
                rest = max(min(rest, sum(rests)) if is_first else rest, max(rests))
            self.estimate = self.last, rest

    def seconds(self, now: float) -> float | None:
        """Return the estimate in seconds at time ``now``; None before the first work is finished."""
        time, rest = self.estimate
        return None if rest is None else max(rest - (now - time), 0.0)
