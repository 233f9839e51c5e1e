"""The command line: what each command prints, and how each mistake ends."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
from processes import SHORT, pogm

from pogm.algorithms import all_algorithms
from pogm.cli import main
from pogm.cli.parser import parser
from pogm.core.hyperparameters import fields
from pogm.data.datasets import all_datasets

RUN = ("run", "--dataset", "RotatedDigits", "--algorithm", "POGM", *SHORT, "--steps", "21")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs."""
    root = tmp_path_factory.mktemp("runs")
    for name in ("ERM", "POGM"):
        assert pogm(*RUN, "--algorithm", name, "--out", root / name).code == 0
    return root


def commands() -> list[str]:
    (subcommands,) = [action for action in parser()._actions if action.choices]
    return list(subcommands.choices)


@pytest.mark.parametrize("name", commands())
def test_the_help_of_every_command_has_an_example(capsys, name):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"\n  pogm {name} " in capsys.readouterr().out.partition("example")[2]


def test_the_help_of_the_program_shows_every_command_at_work(capsys):
    with pytest.raises(SystemExit):
        main(["--help"])
    examples = capsys.readouterr().out.partition("examples:")[2]
    assert all(f"pogm {name}" in examples for name in commands())


def test_the_module_can_be_run_and_says_its_version():
    said = subprocess.run([sys.executable, "-m", "pogm", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("pogm 0.")


@pytest.mark.parametrize("what", ["algorithms", "datasets", "modifiers", "networks"])
def test_lists_show_every_default_and_search_space(capsys, what):
    assert main(["list", what]) == 0
    out = capsys.readouterr().out
    shown = {tuple(line.split()) for line in out.splitlines()}
    if what == "algorithms":
        for name, method in all_algorithms().items():
            assert (name,) in shown
            for field in fields(method):
                space = field.metadata["space"]
                note = f"search {space}" if space else " | ".join(field.metadata["options"] or ())
                assert tuple(f"{field.name} {field.default} {note}".split()) in shown
        assert "preset domainbed: through=ends" in out
    if what == "datasets":
        assert all(name in out and ", ".join(dataset.domains) in out for name, dataset in all_datasets().items())
        assert "search 10^U(-4.5, -2.5)" in out
        assert "comes with the package" in out
        assert "needs --data" in out
    if what == "modifiers":
        assert ("alpha", "0.2", "search", "10^U(-1,", "1)") in shown
    if what == "networks":
        assert {("mlp",), ("mnist_cnn",)} <= shown


def test_a_dry_run_prints_what_would_be_done_and_writes_nothing(tmp_path, capsys):
    assert main(["demo", "--dry-run", "--seeds", "1", "--out", str(tmp_path / "demo")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{len(lines) - 1} runs of 151 minibatches")
    assert main([*RUN, "--dry-run", "--out", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["algorithm"]["name"] == "POGM"
    assert not list(tmp_path.iterdir())


def test_a_run_prints_a_line_per_evaluation_and_a_second_one_does_nothing(tmp_path):
    first = pogm(*RUN, "--out", tmp_path / "run")
    assert first.code == 0
    assert [line.split()[1] for line in first.out.splitlines()] == ["0/20", "10/20", "20/20"]
    assert first.out.splitlines()[1].endswith("s left")
    second = pogm(*RUN, "--out", tmp_path / "run")
    assert (second.code, second.out) == (0, "")
    third = pogm("resume", tmp_path / "run")
    assert (third.code, third.out, "is done already" in third.err) == (0, "", True)


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dataset", "RotatedDigit"), "Did you mean 'RotatedDigits'?"),
        (("--algorithm", "pogn"), "Did you mean 'POGM'?"),
        (("--set", "kapa=1"), "Did you mean 'kappa'?"),
        (("--set", "kappa=-1"), "at least 0; found '-1'"),
        (("--set", "kappa=nan"), "found 'nan'"),
        (("--set", "inner_steps=0"), "at least 1; found '0'"),
        (("--set", "meta_lr=0"), "above 0; found '0'"),
        (("--test-domain", "90"), "a domain of RotatedDigits"),
        (("--test-domain", "0", "--test-domain", "0"), "each once"),
        (("--steps", "0"), "steps to be a whole number from 1"),
        (("--threads", "0"), "--threads of at least 1; found 0"),
        (("--checkpoint-seconds", "nan"), "--checkpoint-seconds of at least 0; found nan"),
        (("--device", "toaster"), "a device such as cpu"),
    ],
)
def test_a_mistake_is_one_paragraph_with_exit_code_2_and_nothing_is_written(tmp_path, capsys, words, message):
    assert main([*RUN, "--out", str(tmp_path / "run"), *words]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "Expected" in said
    assert "; found " in said
    assert "\n" not in said.partition("pogm: ")[2]
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("words", [["demo", "--seeds", "0"], ["demo", "--workers", "0"], ["resume", "/absent"]])
def test_other_commands_refuse_mistakes_too(capsys, words):
    assert main(words) == 2
    assert "Expected" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["trian"], ["run"], ["run", "--steps", "many"], ["list", "colours"]])
def test_words_that_are_no_command_end_with_exit_code_2(capsys, words):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "usage: pogm" in capsys.readouterr().err


def test_missing_data_ends_with_exit_code_3_and_nothing_is_written(tmp_path, capsys):
    words = ("run", "--dataset", "RotatedMNIST", "--algorithm", "ERM", "--test-domain", "0", "--device", "cpu")
    assert main([*words, "--data", str(tmp_path / "absent"), "--out", str(tmp_path / "run")]) == 3
    assert "name another data folder with --data" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize("form", ["text", "csv", "json", "latex", "html"])
def test_a_report_of_finished_runs_in_every_format(runs, tmp_path, capsys, form):
    assert main(["report", str(runs), "--format", form, "--out", str(tmp_path)]) == 0
    out = capsys.readouterr().out
    if form == "json":
        assert all(isinstance(table, dict) for table in json.loads(out))
    if form == "html":
        assert out == ""
    else:
        assert "ERM" in out
        assert "POGM" in out
    written = {path.suffix for path in tmp_path.iterdir()}
    assert written == ({".html", ".svg"} if form in ("text", "html") else set())


def test_a_report_of_nothing_says_so(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "Expected finished runs" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "absent")]) == 3
    assert "found nothing at" in capsys.readouterr().err


def test_a_report_that_cannot_be_written_is_no_traceback(runs, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["report", str(runs), "--format", "html", "--out", str(tmp_path / "file" / "below")]) == 3
    assert "pogm: Expected" in capsys.readouterr().err


def test_a_reader_that_has_had_enough_ends_a_command_quietly():
    words = f"{sys.executable} -m pogm list algorithms | head -n 1"
    said = subprocess.run(words, shell=True, capture_output=True, text=True, check=True)
    assert (said.stdout.strip(), said.stderr) == (next(iter(all_algorithms())), "")


def test_a_run_that_nobody_watches_any_more_goes_on(tmp_path):
    words = [sys.executable, "-m", "pogm", *RUN, "--out", str(tmp_path / "run")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdout.close()
    assert process.returncode == 0
    assert (tmp_path / "run" / "done").exists()


def test_a_run_in_bf16_goes_on_in_bf16(tmp_path):
    """It rounds, unlike the other places for trajectories; and the run says so."""
    words = ("run", "--dataset", "RotatedDigits", "--algorithm", "POGM", "--test-domain", "0", "--steps", "11")
    folder = tmp_path / "run"
    stopped = pogm(*words, "--trajectories", "bf16", "--device", "cpu", "--out", folder, fault="term@step:5")
    assert stopped.code == 75
    assert pogm("resume", folder, "--device", "cpu").code == 0
    saved = json.loads((folder / "trial.json").read_text())["provenance"]
    assert saved["trajectories"] == "bf16"


def test_a_sweep_is_not_spread(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    end = pogm("resume", tmp_path, "--spread", "domains")
    assert end.code == 2
    assert "--spread for one run" in end.err
