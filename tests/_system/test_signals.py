"""Ctrl-C and SIGHUP while nothing is trained: during imports, while data are read, and under nohup."""

import os
import pty
import signal
import subprocess
import sys

import pytest
from image_folders import write_folder
from processes import pogm

from pogm._system.signals import STOPPED, HangupError, interruptible
from pogm.benchmark.runs.context import catch_stop_signals
from pogm.cli import main

CODES = {signal.SIGINT: 130, signal.SIGHUP: 129}
by_signal = pytest.mark.parametrize("number", CODES, ids=lambda number: number.name)

# Sends a signal to its own process when a module is imported, and hides the exception as some packages do.
IMPORTING = """
import os, sys

class Sender:
    def find_spec(self, name, path, target=None):
        if name == {module!r}:
            try:
                os.kill(os.getpid(), {number})
            except BaseException:
                raise ImportError("hidden")

sys.meta_path.insert(0, Sender())
sys.argv = ["pogm", "list", "algorithms"]
from pogm.__main__ import main
sys.exit(main())
"""


@by_signal
@pytest.mark.parametrize("module", ["argparse", "torch"])
def test_signal_during_imports_ends_the_program_with_one_line(number, module):
    program = IMPORTING.format(module=module, number=int(number))
    end = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert (end.returncode, end.stdout, end.stderr) == (CODES[number], "", f"{STOPPED}\n")


@by_signal
def test_signal_in_a_command_prints_one_line_and_restores_the_handlers(monkeypatch, capsys, tmp_path, number):
    before = signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)
    monkeypatch.setattr("pogm.cli.status.Status.run", lambda self: os.kill(os.getpid(), number))
    assert main(["status", str(tmp_path)]) == CODES[number]
    said = capsys.readouterr()
    assert (said.out, said.err) == ("", f"{STOPPED}\n")
    assert (signal.getsignal(signal.SIGINT), signal.getsignal(signal.SIGHUP)) == before


@pytest.mark.parametrize(("name", "code"), [("int", 130), ("hup", 129)])
def test_signal_while_images_are_decoded_prints_one_line_and_the_same_command_continues(tmp_path, name, code):
    data = write_folder(tmp_path / "data", images=code - 124)  # not the images of the other case, which are cached
    words = ("run", "--dataset", data, "--algorithm", "ERM", "--test-domain", "0", "--steps", 2, "--device", "cpu")
    words += ("--set", "network=mnist_cnn", "--set", "image_size=28", "--set", "batch_size=2")
    words += ("--set", "weights=random", "--set", "freeze_bn=false")
    words += ("--out", tmp_path / "run")
    end = pogm(*words, fault=f"{name}@journal:1")
    assert end.code == code
    assert [line for line in end.err.splitlines() if not line.startswith("images: ")] == [STOPPED]
    assert not (tmp_path / "run").exists()
    assert pogm(*words).code == 0


def test_hangup_is_ignored_under_nohup():
    before = signal.signal(signal.SIGHUP, signal.SIG_IGN)
    try:
        with interruptible(), catch_stop_signals() as stop:
            os.kill(os.getpid(), signal.SIGHUP)
        assert stop.signal is None
    finally:
        signal.signal(signal.SIGHUP, before)


def test_second_hangup_does_not_end_a_run_that_saves():
    """The system and the shell both send it when a terminal is closed."""
    with catch_stop_signals() as stop:
        os.kill(os.getpid(), signal.SIGHUP)
        os.kill(os.getpid(), signal.SIGHUP)
        assert stop.signal == signal.SIGHUP
        with pytest.raises(SystemExit) as end:
            os.kill(os.getpid(), signal.SIGINT)
    assert end.value.code == 130


def test_signal_before_there_is_anything_to_save_ends_the_run_at_once_except_sigterm():
    with catch_stop_signals() as stop, stop.without_saving():
        with pytest.raises(HangupError):
            os.kill(os.getpid(), signal.SIGHUP)
        with pytest.raises(KeyboardInterrupt):
            os.kill(os.getpid(), signal.SIGINT)
        assert stop.signal is None
        os.kill(os.getpid(), signal.SIGTERM)
        assert stop.signal == signal.SIGTERM


STOPS_ITSELF = """
import os, signal
from pogm.benchmark.runs.context import catch_stop_signals
with catch_stop_signals() as stop:
    os.kill(os.getpid(), signal.SIGINT)
print(stop.signal)
"""


@pytest.mark.parametrize("options", ["", "answer=b'The jobs go on.'"])
def test_first_ctrl_c_is_answered_on_a_terminal(options):
    terminal, end = pty.openpty()
    try:
        script = STOPS_ITSELF.replace("signals() as", f"signals({options}) as")
        run = subprocess.run([sys.executable, "-c", script], stdout=subprocess.PIPE, stderr=end, text=True, check=True)
        answer = b"The jobs go on." if options else b"\r\npogm: Stopping after the current step, with a checkpoint. "
        assert os.read(terminal, 1000).startswith(answer)
    finally:
        os.close(terminal)
        os.close(end)
    assert run.stdout == f"{int(signal.SIGINT)}\n"
    quiet = subprocess.run([sys.executable, "-c", STOPS_ITSELF], capture_output=True, text=True, check=True)
    assert quiet.stderr == "", "not in the log of a scheduler"
