"""Options in TOML files: --config, --save-config, and the errors of both."""

import argparse
import dataclasses
from functools import partial
from pathlib import Path

import pytest

from pogm.cli import command_names, main, parse, parser
from pogm.cli.config import config_text
from pogm.cli.parser import Command, changed_options, read_path

SWEEP = ["sweep", "--algorithms", "ERM", "--datasets", "ColoredDigits", "--out", "out"]


def leaf(name: str) -> argparse.ArgumentParser:
    """Return the parser of a command such as "data check"."""
    found = parser(name.split()[0])
    for word in name.split():
        (commands,) = (action for action in found._actions if isinstance(action, argparse._SubParsersAction))
        found = commands.choices[word]
    return found


def other_words(action: argparse.Action) -> list[str]:
    """Return an option with a value that is not its default."""
    flag = action.option_strings[-1]
    if action.nargs == 0:
        return [flag]
    if action.choices is not None:
        return [flag, str(list(action.choices)[-1])]
    if isinstance(action.type, partial):
        return [flag, "37" if action.dest != "port" else "8037"]
    text = 'a "b" \\ é\t\x7f'
    return [flag, text, *(["second"] if action.nargs == "+" else [])]


def without_files(command: Command) -> Command:
    """Return a command without the files of --config and --save-config."""
    return dataclasses.replace(command, common=dataclasses.replace(command.common, config=None, save_config=None))


@pytest.mark.parametrize("name", sorted(command_names()))
def test_saved_options_of_every_command_are_read_again(name, tmp_path):
    actions = leaf(name)._actions
    positional = [
        next(map(str, action.choices)) if action.choices else "x" for action in actions if not action.option_strings
    ]
    options = [
        action
        for action in actions
        if action.option_strings and action.dest not in ("help", "config", "save_config", "dry_run", "estimate")
    ]
    given = parse([*name.split(), *positional, *(word for action in options for word in other_words(action))])
    changed = changed_options(given)
    fixed = [action for action in options if len(action.choices or ()) == 1 and action.dest != "against"]
    assert len(changed) == len(options) - len(fixed)
    (tmp_path / "options.toml").write_text(config_text(changed, name))
    read = parse([*name.split(), *positional, "--config", str(tmp_path / "options.toml")])
    assert without_files(read) == without_files(given)


def test_the_command_line_overrides_the_file_and_a_table_of_the_command_overrides_top_level_keys(tmp_path):
    path = tmp_path / "options.toml"
    path.write_text(
        'algorithms = ["ERM", "POGM"]\ndatasets = ["PACS"]\nout = "~/there"\nset = ["lr=1"]\nevaluate_every = 5\n'
        '[sweep]\ntrials = 2\nset = ["lr=2"]\nconfigurations = 4\n[run]\nnonsense = 1\n'
    )
    read = parse(["sweep", "--trials", "7", "--config", str(path), "--datasets", "VLCS"])
    assert (read.algorithms, read.datasets, read.trials) == (("ERM", "POGM"), ("VLCS",), 7)
    assert (read.configurations, read.settings.settings) == (4, ("lr=2",))
    assert (read.out, read.training.evaluate_every) == (Path.home() / "there", 5)
    assert parse(["sweep", "--config", str(path), "--set", "a=1"]).settings.settings == ("a=1",)


@pytest.mark.parametrize(
    ("content", "said"),
    [
        ("trails = 3", "the key 'trails'. Did you mean 'trials'?"),
        ('trials = "3"', "Expected a whole number for trials in"),
        ("trials = 1.5", "Expected a whole number for trials in"),
        ("trials = 0", "Expected a whole number from 1 to 1000; found '0'."),
        ("dry-run = 1", "Expected true or false for dry-run in"),
        ('compile = "onn"', "Did you mean 'on'?"),
        ("algorithms = []", "a list with at least one value for algorithms"),
        ("algorithms = [true]", "a string or a list of strings for algorithms"),
        ("out = 3", "Expected a string for out in"),
        ("dry_run = true\ndry-run = true", "found dry-run twice"),
        ("trials = [", "Expected TOML in"),
        ("[sweeep]\ntrials = 1", "the key 'sweeep'"),
    ],
)
def test_errors_name_the_file_the_key_and_the_nearest_option(content, said, tmp_path, capsys):
    path = tmp_path / "options.toml"
    path.write_text(content)
    assert main([*SWEEP[:3], "--dry-run", "--config", str(path)]) == 2
    err = capsys.readouterr().err
    assert said in err
    assert str(path) in err
    assert err.count("pogm:") == 1


def test_an_argument_and_a_missing_file_are_refused(tmp_path, capsys):
    path = tmp_path / "options.toml"
    path.write_text('folder = "runs"')
    assert main(["status", "runs", "--config", str(path)]) == 2
    assert "It is an argument, not an option" in capsys.readouterr().err
    assert main(["status", "runs", "--config", str(tmp_path)]) == 2
    assert main(["status", "runs", "--config", str(tmp_path / "none.toml")]) == 2
    assert "No such file" in capsys.readouterr().err


def test_save_config_writes_the_file_before_the_command_runs(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main(["status", "nothing", "--save-config", "saved.toml", "--json", "x.json"]) == 2
    assert Path("saved.toml").read_text() == '# Options of: pogm status\njson = "x.json"\n'
    assert "Options: saved.toml" in capsys.readouterr().err


def test_a_saved_file_does_not_make_every_later_command_a_dry_run(tmp_path):
    words = "sweep --algorithms ERM --datasets RotatedDigits --trials 2 --out x"
    saved = changed_options(parse([*words.split(), "--dry-run", "--estimate"]))
    assert saved["trials"] == 2
    assert not {"dry-run", "estimate"} & set(saved)


def test_paths_with_a_null_character_are_refused():
    with pytest.raises(argparse.ArgumentTypeError):
        read_path("a\0b")


def test_an_option_with_a_list_that_is_given_twice_has_the_values_of_both():
    words = "sweep --algorithms ERM --algorithms POGM Fish --with Mixup --with SMA --datasets RotatedDigits --out x"
    command = parse(words.split())
    assert command.algorithms == ("ERM", "POGM", "Fish")
    assert command.modifiers == ("Mixup", "SMA")
