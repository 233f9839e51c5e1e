"""Text for the terminal: names cannot move the cursor, forge lines or interrupt a command."""

import io
import os
import re
import sys
import warnings

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.console import Console
from run_folders import record, write_run

from pogm._system.errors import DataError
from pogm._system.terminal import (
    WarningPrinter,
    escaped_output,
    leave_closed_terminal,
    message_text,
    print_line,
    printable,
    printed_warnings,
)
from pogm.benchmark.progress import run_progress
from pogm.cli import main
from pogm.cli.predict import STDOUT, write_csv

HOSTILE = "a\nb\r\x1b[31m\x9b2J\x07\u202e\u2028\x00[bold]\udcff"
ESCAPED = r"a\nb\r\x1b[31m\x9b2J\x07\u202e\u2028\x00[bold]\udcff"
CONTROL = re.compile(r"[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028\u2029\u202a-\u202e\u2066-\u2069\ud800-\udfff]")


@given(st.text(st.characters()))
def test_any_name_becomes_one_line_that_can_be_encoded(name):
    assert len(printable(name).splitlines()) <= 1
    printable(name).encode()


def test_control_characters_are_escaped_and_other_characters_are_not():
    assert printable(HOSTILE) == ESCAPED
    assert printable("−90 % ü 空 🦒 [bold]") == "−90 % ü 空 🦒 [bold]"


@given(text=st.text(st.characters()))
def test_everything_that_is_printed_is_escaped_and_lines_stay_lines(text):
    stream = io.TextIOWrapper(io.BytesIO(), "ascii", newline="")
    before, sys.stdout = sys.stdout, stream
    try:
        with escaped_output():
            print(text)
    finally:
        sys.stdout = before
    stream.flush()
    shown = stream.buffer.getvalue().decode("ascii")
    assert shown.count("\n") == text.count("\n") + 1
    assert not CONTROL.search(shown.replace("\t", ""))


def test_only_a_message_with_several_lines_has_several_lines():
    assert message_text(DataError(f"in {HOSTILE}", "  second")) == f"in {ESCAPED}\n  second"
    assert str(DataError("one", "two")) == "one\ntwo"
    assert message_text(UserWarning(HOSTILE)) == ESCAPED


def test_line_above_a_progress_bar_is_escaped_and_not_markup(monkeypatch):
    terminal = io.StringIO()
    monkeypatch.setattr(terminal, "isatty", lambda: True)
    monkeypatch.setattr(sys, "stderr", terminal)
    monkeypatch.setenv("TERM", "xterm")
    with escaped_output():
        for number in run_progress.show_progress([1, 2], 2, "[red]runs"):
            print_line(f"line {number} {HOSTILE}", file=sys.stderr)
            print("by another package \x1b[32m\u202e", file=sys.stderr)
    assert sys.stderr is terminal
    shown = terminal.getvalue()
    assert f"line 1 {ESCAPED}" in shown
    assert r"by another package \x1b[32m\u202e" in shown
    assert "[red]runs" in shown
    assert "\x1b[31m" not in shown, "the colour of the name"
    assert "\x1b[2K" in shown, "the bar itself is drawn"
    assert not CONTROL.search(re.sub(r"\x1b\[[?\d;]*[A-Za-z]|\r", "", shown))


@pytest.fixture(scope="module")
def runs(tmp_path_factory):
    """A folder of runs from someone else, with names that contain everything."""
    root = tmp_path_factory.mktemp("runs")
    name = HOSTILE.replace("\udcff", "")  # JSON files are UTF-8
    records = [record(step, [0.5] * 3, [0.5] * 3) for step in (0, 100)]
    for domain in range(3):
        folder = write_run(root, records, label=name, dataset=name, domains=(name, "B", "C"), test_domains=[domain])
        (folder / "done").touch()
    return root


@pytest.mark.parametrize("words", [("report", "--format", f) for f in ("text", "csv", "json", "latex")] + [("status",)])
def test_names_in_runs_are_escaped_in_every_format(runs, capsys, monkeypatch, words):
    monkeypatch.setattr("pogm.cli.results.write_html", lambda *_: None)  # takes seconds; browser tests check it
    assert main([words[0], str(runs), *words[1:]]) == 0
    said = capsys.readouterr()
    assert not CONTROL.search(said.out + said.err)
    assert r"\u202e" in said.out
    assert r"a\nb" in said.out.replace(r"\textbackslash{}", "\\")
    assert not any(line.startswith("b\\") for line in (said.out + said.err).splitlines())


@pytest.mark.parametrize("words", ["status", "board", "report", "resume", "data check", "predict", "export --to onnx"])
def test_error_about_a_path_is_one_line(capsys, tmp_path, words):
    path = str(tmp_path / HOSTILE.replace("\x00", ""))
    code = main([*words.split(), path, *[path] * (words == "predict")])
    assert code in (2, 3)
    said = capsys.readouterr().err
    assert said.startswith("pogm: Expected")
    assert said.count("\n") == 1
    assert not CONTROL.search(said)


def test_usage_error_is_escaped(capsys):
    with pytest.raises(SystemExit):
        main(["status", "folder", "--" + HOSTILE])
    said = capsys.readouterr().err
    assert ESCAPED in said
    assert not CONTROL.search(said)


def test_predictions_are_escaped_on_a_terminal_and_exact_elsewhere(monkeypatch):
    name = os.fsencode("a\n\x1b[31m\udcff.png")
    content = b'path,prediction\n"' + name + b'",cat\n'
    for is_terminal, expected in ((True, b"path,prediction\na\\n\\x1b[31m\\udcff.png,cat\n"), (False, content)):
        stream = io.TextIOWrapper(io.BytesIO(), "utf-8", newline="")
        monkeypatch.setattr(stream, "isatty", lambda found=is_terminal: found)
        monkeypatch.setattr(sys, "stdout", stream)
        with escaped_output():
            write_csv(content, STDOUT)
        stream.flush()
        assert stream.buffer.getvalue() == expected


def test_closed_terminal_is_left_and_an_open_one_is_not():
    master, terminal = os.openpty()
    leave_closed_terminal([terminal])
    os.write(terminal, b"seen")
    assert os.read(master, 10) == b"seen"
    os.close(master)
    with pytest.raises(OSError, match="Input/output error"):
        os.write(terminal, b"lost")
    leave_closed_terminal([terminal])
    os.write(terminal, b"discarded")
    os.close(terminal)


def test_console_of_rich_writes_to_the_stream_itself(monkeypatch):
    stream = io.StringIO()
    monkeypatch.setattr(sys, "stdout", stream)
    with escaped_output():
        assert Console().file is stream


def test_a_warning_is_printed_once_also_by_the_processes_of_a_sweep(capsys):
    with warnings.catch_warnings():
        warnings.simplefilter("always")
        warnings.showwarning = WarningPrinter()
        for text in ("one", "two\nlines", "one"):
            warnings.warn(text, UserWarning, stacklevel=1)
        warnings.showwarning = WarningPrinter(printed_warnings())  # as in a worker
        for text in ("one", "three"):
            warnings.warn(text, UserWarning, stacklevel=1)
    assert capsys.readouterr().err.splitlines() == [
        "pogm: UserWarning: one",
        r"pogm: UserWarning: two\nlines",
        "pogm: UserWarning: three",
    ]
