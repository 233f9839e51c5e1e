"""Fault injection."""

import errno
import signal
from collections import Counter

import pytest

from pogm._system import fault_injection
from pogm._system.fault_injection import fault_point


@pytest.fixture(autouse=True)
def _reset_counters(monkeypatch):
    monkeypatch.setattr(fault_injection, "_passed", Counter())


def test_no_fault_without_the_environment_variable(monkeypatch):
    monkeypatch.delenv("POGM_FAULT", raising=False)
    fault_point("write")


def test_disk_is_full_only_at_the_requested_pass_of_the_point(monkeypatch):
    monkeypatch.setenv("POGM_FAULT", "full@write:2")
    fault_point("write")
    fault_point("append")
    fault_point("append")
    with pytest.raises(OSError, match="No space left") as full:
        fault_point("write")
    assert full.value.errno == errno.ENOSPC
    fault_point("write")


def test_several_faults_at_different_points(monkeypatch):
    monkeypatch.setenv("POGM_FAULT", "usr1@step:2,full@write:1")
    received = []
    before = signal.signal(signal.SIGUSR1, lambda number, frame: received.append(number))
    try:
        fault_point("step")
        assert received == []
        fault_point("step")
        assert received == [signal.SIGUSR1]
        with pytest.raises(OSError, match="No space left"):
            fault_point("write")
    finally:
        signal.signal(signal.SIGUSR1, before)
