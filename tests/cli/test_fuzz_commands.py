"""Command lines of random words: one message and an allowed exit code."""

import argparse
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest
from fuzzing import assert_one_message, few
from hypothesis import given
from hypothesis import strategies as st

from pogm.cli import parser

pytestmark = [pytest.mark.fuzz, pytest.mark.filterwarnings("ignore")]

VALID = [
    "run --dataset ColoredDigits --algorithm POGM --test-domain 0 --set kappa=0.1 --out out",
    "sweep --algorithms ERM POGM --datasets ColoredDigits --trials 1 --out out",
    "measure --algorithms ERM --target --out out",
    "experiment table2 --scale embedded",
    "train table.csv --out out",
    "demo --out out",
    "resume out",
    "soup out --rule greedy",
    "ensemble out --mean probabilities --dry-run",
    "status out",
    "report out --format csv",
    "export out --to safetensors",
    "predict out table.csv --csv x.csv",
    "evaluate out table.csv",
    "list algorithms",
    "data list",
    "data check table.csv",
    "weights convert table.csv",
    "new algorithm Name",
    "sweep --config options.toml --json",
    "run --config options.toml --save-config saved.toml -q",
    "status out --json status.json -v",
    "list datasets PACS --json",
]
DRY = ("run", "sweep", "measure", "experiment", "train", "demo", "resume")
# Not drawn: commands that download, serve or train in any case, and options that train or start processes.
EXCLUDED = {"board", "verdict", "fetch", "prepare", "--estimate", "--address", "doctor"}
JUNK = [
    "",
    "-",
    "--",
    "=",
    "-1",
    "0",
    "1",
    "75",
    "1e400",
    "nan",
    "9" * 30,
    "x",
    "a\nb",
    "\0",
    "\udcff",
    "é",
    "{}",
    "lr=1e30",
]
JUNK += [
    "lr=",
    "kappa=nan",
    "batch_size=1e30",
    "=1",
    "network=resnet18",
    "/dev/null",
    "../x",
    "out",
    "table.csv",
    "$(x)",
]


OPTIONS = """algorithms = ["ERM"]
[sweep]
datasets = ["ColoredDigits"]
out = "out"
[run]
dataset = "ColoredDigits"
"""
TOML_VALUES = ["1", "-1", "1.5", "true", '"x"', "[]", "[1]", '["ERM", "POGM"]', "[[1]]", "{}", "{a = 1}", "1979-05-27"]
TOML_VALUES += ["nan", "inf", '""', '"\\u0000"', "9" * 30, "["]


def words_of(top: argparse.ArgumentParser) -> Iterator[str]:
    """Yield commands, options and choices of a parser and of its commands."""
    for action in top._actions:
        yield from action.option_strings
        if isinstance(action, argparse._SubParsersAction):
            for name, command in action.choices.items():
                yield name
                yield from words_of(command)
        else:
            yield from map(str, action.choices or ())


VOCABULARY = sorted({*words_of(parser())} - EXCLUDED)


@st.composite
def commands(draw: st.DrawFn) -> list[str]:
    """Draw a valid command with a few words replaced, inserted or removed."""
    words = draw(st.sampled_from(VALID)).split()
    for _ in range(draw(st.integers(0, 3))):
        start = draw(st.integers(0, len(words)))
        new = draw(st.lists(st.sampled_from(VOCABULARY) | st.sampled_from(JUNK), max_size=2))
        words[start : start + draw(st.integers(0, 1))] = new
    return [words[0], "--dry-run", *words[1:]] if words and words[0] in DRY else words


@few(60)
@given(commands())
def test_random_words_give_one_message_and_an_allowed_exit_code(words):
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("options.toml").write_text(OPTIONS)
        Path("table.csv").write_text("a,label,domain\n" + "".join(f"{i},{i % 2},{i % 3}\n" for i in range(30)))
        try:
            assert_one_message(words)
        finally:
            os.chdir(before)


@few(60)
@given(
    st.sampled_from(["sweep", "run", "list algorithms", "report out"]),
    st.lists(
        st.tuples(st.sampled_from([word.strip("-") for word in VOCABULARY]), st.sampled_from(TOML_VALUES)), max_size=4
    ),
)
def test_random_config_files_give_one_message_and_an_allowed_exit_code(command, pairs):
    keep = [(name, value) for name, value in pairs if name not in ("estimate", "address", "executor")]
    content = "\n".join(f"{name} = {value}" for name, value in [("dry-run", "true"), *keep] if name)
    if not command.startswith(("sweep", "run")):
        content = content.removeprefix("dry-run = true\n")
    before = Path.cwd()
    with tempfile.TemporaryDirectory() as folder:
        os.chdir(folder)
        Path("options.toml").write_text(content)
        try:
            assert_one_message([*command.split(), "--config", "options.toml"])
        finally:
            os.chdir(before)
