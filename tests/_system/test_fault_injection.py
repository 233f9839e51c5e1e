"""Faults on request."""

import errno
import signal
from collections import Counter

import pytest

from pogm._system import fault_injection
from pogm._system.fault_injection import fault_point


@pytest.fixture(autouse=True)
def _fresh(monkeypatch):
    monkeypatch.setattr(fault_injection, "_passed", Counter())


def test_nothing_happens_unless_the_environment_asks_for_it(monkeypatch):
    monkeypatch.delenv("POGM_FAULT", raising=False)
    fault_point("write")


def test_the_disk_is_full_at_that_point_the_asked_for_time_and_at_no_other(monkeypatch):
    monkeypatch.setenv("POGM_FAULT", "full@write:2")
    fault_point("write")
    fault_point("append")
    fault_point("append")
    with pytest.raises(OSError, match="No space left") as full:
        fault_point("write")
    assert full.value.errno == errno.ENOSPC
    fault_point("write")


def test_several_faults_each_have_their_own_point(monkeypatch):
    monkeypatch.setenv("POGM_FAULT", "usr1@step:2,full@write:1")
    came = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: came.append(number))
    try:
        fault_point("step")
        assert came == []
        fault_point("step")
        assert came == [signal.SIGUSR1]
        with pytest.raises(OSError, match="No space left"):
            fault_point("write")
    finally:
        signal.signal(signal.SIGUSR1, before)
