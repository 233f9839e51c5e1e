"""Output that cannot be written does not end a command that trains."""

import os
import subprocess
import sys

import pytest

from pogm._system.output import ignore_output_errors


def full_disk() -> int:
    return os.open("/dev/full", os.O_WRONLY)


def closed_pipe() -> int:
    reader, writer = os.pipe()
    os.close(reader)
    return writer


@pytest.mark.parametrize("target", [full_disk, closed_pipe])
@pytest.mark.parametrize("name", ["stdout", "stderr"])
def test_what_cannot_be_written_is_dropped(monkeypatch, target, name):
    with open(target(), "w", closefd=True) as stream:
        monkeypatch.setattr(sys, name, stream)
        with ignore_output_errors():
            for _ in range(3):
                print("x" * 10_000, file=getattr(sys, name), flush=True)
        assert getattr(sys, name) is stream


def test_what_cannot_be_encoded_is_escaped(monkeypatch, tmp_path):
    with open(tmp_path / "log", "w", encoding="ascii") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with ignore_output_errors():
            print("R² 0.5, κ")
    assert (tmp_path / "log").read_text() == "R\\xb2 0.5, \\u03ba\n"


def test_output_is_written_in_order(monkeypatch, tmp_path):
    with open(tmp_path / "log", "w") as stream:
        monkeypatch.setattr(sys, "stdout", stream)
        with ignore_output_errors():
            print("one")
        print("two")
    assert (tmp_path / "log").read_text() == "one\ntwo\n"


def test_unbuffered_output_appears_at_once():
    """With PYTHONUNBUFFERED, as in many containers, both streams arrive in the order of the calls."""
    program = (
        "import sys\nfrom pogm._system.output import ignore_output_errors\n"
        "with ignore_output_errors():\n    print('table')\n    print('next', file=sys.stderr)\n    print('end')\n"
    )
    environment = {**os.environ, "PYTHONUNBUFFERED": "1"}
    command = [sys.executable, "-c", program]
    found = subprocess.run(command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, check=True)
    assert found.stdout.split() == [b"table", b"next", b"end"]


def test_a_stream_without_a_file_stays(capsys):
    with ignore_output_errors():
        print("text")
    assert capsys.readouterr().out == "text\n"
