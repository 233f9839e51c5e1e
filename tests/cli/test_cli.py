"""The command line: output of each command, errors and exit codes."""

import argparse
import dataclasses
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import get_args, get_type_hints

import pytest
from image_folders import write_folder
from processes import SHORT, pogm, start, torchrun_variables
from run_folders import record as make_record
from run_folders import write_run
from sample_files import OPTIONS, write_table

import pogm as pogm_package
from pogm.algorithms import all_algorithms
from pogm.benchmark.catalogue import CATALOGUES, DOMAINBED
from pogm.benchmark.executors.waiting_trials import EXECUTORS
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.results.published import SOURCES
from pogm.benchmark.runs.directory import write_trial
from pogm.benchmark.runs.runner import RunOptions
from pogm.benchmark.runs.sweep_directory import save_sweep
from pogm.cli import VERBS, main, options, parse, parser, report
from pogm.cli import list as list_verb
from pogm.cli.parser import _read_number
from pogm.core.hyperparameters import fields
from pogm.data.datasets import all_datasets
from pogm.data.images.cache import ON_BAD_IMAGE
from pogm.engine.engine import CHOICES
from pogm.engine.parallel import SPREADS
from pogm.experiments.base import SCALES
from pogm.modifiers import all_modifiers
from pogm.report.serve import PORT
from pogm.trackers import all_trackers

RUN = ("run", "--dataset", "RotatedDigits", "--algorithm", "POGM", *SHORT, "--steps", "21")


@pytest.fixture(scope="module")
def runs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with two finished runs."""
    root = tmp_path_factory.mktemp("runs")
    for name in ("ERM", "POGM"):
        assert pogm(*RUN, "--algorithm", name, "--out", root / name).code == 0
    return root


COMMANDS = [verb for verbs in VERBS.values() for verb in verbs]


def default_of(kind: type, name: str) -> object:
    """Return the default of an option of a command, or of one of its groups of options."""
    for field in dataclasses.fields(kind):
        if field.name == name and "group" not in field.metadata:
            return field.default if field.default_factory is dataclasses.MISSING else field.default_factory()
        if (
            "group" in field.metadata
            and (found := default_of(field.metadata["group"], name)) is not dataclasses.MISSING
        ):
            return found
    return dataclasses.MISSING


def parsers() -> list[tuple[str, argparse.ArgumentParser]]:
    """Return every command that has options, such as "run" and "data list", with its parser."""
    found = []
    waiting = [("", parser())]
    while waiting:
        name, one = waiting.pop(0)
        nested = [action for action in one._actions if isinstance(action, argparse._SubParsersAction)]
        waiting += [(f"{name} {verb}".strip(), below) for action in nested for verb, below in action.choices.items()]
        found += [] if nested else [(name, one)]
    return found


@pytest.mark.parametrize("name", COMMANDS)
def test_help_of_every_command_has_an_example(capsys, name):
    with pytest.raises(SystemExit) as end:
        main([name, "--help"])
    assert end.value.code == 0
    assert f"\n  pogm {name} " in capsys.readouterr().out.partition("example")[2]


@pytest.mark.parametrize("words", [["--help"], []], ids=["help", "no command"])
def test_help_of_the_program_lists_every_command_in_a_group_and_has_an_example_of_each(capsys, words):
    with pytest.raises(SystemExit, match=r"^0$"):
        main(words)
    listed, _, examples = capsys.readouterr().out.partition("examples:")
    assert all(f"pogm {name}" in examples for name in COMMANDS)
    assert all(f"\n{title}:\n" in listed for title in VERBS)
    assert all(f"\n  {name} " in listed for name in COMMANDS)


@pytest.mark.parametrize(("name", "parser"), parsers(), ids=[name for name, _ in parsers()])
def test_help_of_every_option_is_a_sentence_that_says_the_default(name, parser):
    actions = [action for action in parser._actions if action.dest != "help"]
    assert all("" not in (action.choices or ()) for action in actions), "an empty choice"
    assert actions
    for action in actions:
        text = action.help
        assert text[0].isupper() or text.startswith(("cpu", "fp32", "single", "local")), (name, text)
        assert text.endswith("."), (name, text)
        has_value = action.option_strings and not action.required and action.nargs != 0
        assert not has_value or "default:" in text, (name, text)


def test_commands_with_a_fixed_network_have_no_options_of_training():
    names = [field.name for kind in (options.Execution, options.Device) for field in dataclasses.fields(kind)]
    training = {f"--{name.replace('_', '-')}" for name in names} - {"--data", "--weights", "--device"}
    flags = {name: {flag for action in one._actions for flag in action.option_strings} for name, one in parsers()}
    assert training <= flags["run"]
    assert not training & (flags["verdict"] | flags["data features"])


def test_an_option_that_may_be_repeated_also_takes_several_values():
    for words in (["--hold-out", "a", "--hold-out", "b"], ["--hold-out", "a", "b"]):
        assert parse(["train", "data", *words, "--out", "m"]).hold_out == ("a", "b")
        assert parse(["train", *words, "--out", "m", "--set", "lr=1", "batch_size=2", "--", "data"]).hold_out == (
            "a",
            "b",
        )
    assert parse(["evaluate", "--site", "a", "m", "data"]).site == ("a",)  # MODEL is not a site


def test_a_value_is_not_taken_for_the_argument_of_a_command(capsys):
    with pytest.raises(SystemExit):
        parse(["train", "--hold-out", "a", "b", "data", "--out", "m"])
    assert "arguments: data. Write arguments such as a folder before the options." in capsys.readouterr().err
    with pytest.raises(SystemExit):
        parse(["train", "--hold-out", "a", "data", "--out", "m", "--bogus"])
    assert "arguments: --bogus\n" in capsys.readouterr().err


def test_choices_in_the_options_are_those_of_the_package():
    """The options repeat some names, because the modules that define them import torch."""

    def choices(owner, name):
        (found,) = (get_args(hint) or (hint,) for hint in [get_type_hints(owner)[name]])
        return tuple(value for one in found for value in (get_args(one) or (one,)) if isinstance(value, str))

    assert choices(options.Device, "compile") == CHOICES["compile"]
    assert choices(options.Device, "trajectories") == CHOICES["trajectories"]
    assert choices(options.Distributed, "spread") == SPREADS
    assert choices(options.Hyperparameters, "on_bad_image") == ON_BAD_IMAGE
    assert choices(options.Scheduling, "executor") == EXECUTORS
    assert choices(report.Report, "against") == tuple(SOURCES)
    assert choices(list_verb.List, "what") == (*CATALOGUES, "experiments")
    helps = {name: {action.dest: action.help for action in one._actions} for name, one in parsers()}
    assert all(tracker in helps["run"]["track"] for tracker in all_trackers())
    assert all(scale in helps["experiment"]["scale"] for scale in SCALES)
    assert str(PORT) in helps["board"]["port"]


def test_help_and_version_do_not_import_torch():
    """One new interpreter for all commands: what one of them imports stays imported."""
    program = (
        "import sys\n"
        "from pogm.cli import main\n"
        f"for words in {[['--help'], ['--version'], *([name, '--help'] for name in COMMANDS)]!r}:\n"
        "    try:\n"
        "        main(words)\n"
        "    except SystemExit as end:\n"
        "        assert end.code == 0\n"
        "    imported = {'torch', 'numpy', 'rich', 'sklearn'} & set(sys.modules)\n"
        "    assert not imported, f'{words} imported {imported}'\n"
    )
    ended = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True)
    assert ended.returncode == 0, ended.stderr
    assert all(f"usage: pogm {name}" in ended.stdout for name in COMMANDS)


def test_the_module_can_be_run_and_prints_its_version():
    said = subprocess.run([sys.executable, "-m", "pogm", "--version"], capture_output=True, text=True, check=True)
    assert said.stdout.startswith("pogm 0.")


def test_options_are_read_into_a_typed_dataclass(monkeypatch):
    monkeypatch.setenv("POGM_DATA", "somewhere")
    words = ["sweep", "--algorithms", "ERM", "POGM", "--datasets", "PACS", "--out", "there", "--set", "a=1"]
    command = parse([*words, "--set", "b=2", "--memory-gb", "3", "--evaluate", "5"])
    assert (command.algorithms, command.datasets, command.out) == (("ERM", "POGM"), ("PACS",), Path("there"))
    assert command.settings.settings == ("a=1", "b=2")
    assert (command.execution.data.folder, command.execution.device.memory_gb) == (Path("somewhere"), 3.0)
    assert (command.training.steps, command.training.evaluate_every) == (None, 5)


def test_shell_completion_gets_the_whole_parser(monkeypatch):
    asked = []
    monkeypatch.setitem(sys.modules, "argcomplete", SimpleNamespace(autocomplete=asked.append))
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    parse(["list", "algorithms"])
    (complete,) = asked
    (commands,) = (action for action in complete._actions if isinstance(action, argparse._SubParsersAction))
    assert list(commands.choices) == COMMANDS


def test_shell_completion_without_its_package_is_silent(monkeypatch, capfd):
    monkeypatch.setitem(sys.modules, "argcomplete", None)
    monkeypatch.setenv("_ARGCOMPLETE", "1")
    with pytest.raises(SystemExit):
        main(["list"])
    assert capfd.readouterr() == ("", "")


def test_list_has_a_line_for_every_name(capsys):
    for what, known in (("algorithms", all_algorithms()), ("datasets", all_datasets()), ("modifiers", all_modifiers())):
        assert main(["list", what]) == 0
        lines = capsys.readouterr().out.splitlines()
        assert all(sum(line.split()[:1] == [name] for line in lines) == 1 for name in known)
        assert lines[-1].endswith(f": pogm list {what} NAME")
    assert main(["list", "networks"]) == 0
    assert {"mlp", "mnist_cnn"} <= set(capsys.readouterr().out.splitlines())


def test_list_says_which_datasets_come_with_the_package(capsys):
    main(["list", "datasets"])
    lines = [line for line in capsys.readouterr().out.splitlines() if "(" in line]
    found = {line.split()[0]: line.rpartition("(")[2] for line in lines}
    assert len({re.match(r"\S+ +", line).end() for line in lines}) == 1  # one column
    assert (found["RotatedDigits"], found["PACS"]) == ("comes with the package)", "needs --data)")


@pytest.mark.parametrize("name", all_algorithms())
def test_description_of_an_algorithm_has_every_default_and_search_space(name, capsys):
    assert main(["list", "algorithms", name]) == 0
    shown = capsys.readouterr().out.splitlines()
    for field in fields(all_algorithms()[name]):
        start = f"  {field.name} = {field.default}  ("
        (line,) = (line for line in shown if line.startswith(start))
        assert line.endswith(f"search {field.metadata['space']})" if field.metadata["space"] else ")")
    assert any(line.startswith("Example: pogm run ") for line in shown)


def test_list_against_domainbed_finds_every_method(capsys):
    assert main(["list", "algorithms", "--against", "domainbed"]) == 0
    rows = dict(line.split(maxsplit=1) for line in capsys.readouterr().out.splitlines())
    assert tuple(rows) == DOMAINBED
    assert len(rows) == 34
    assert {name for name, found in rows.items() if found not in all_algorithms()} == {"Mixup"}
    assert rows["Mixup"] == "ERM with the modifier Mixup"
    assert (rows["IB_ERM"], rows["CausIRL_MMD"]) == ("IBERM", "CausIRLMMD")


def test_description_has_the_name_in_domainbed_if_it_differs(capsys):
    found = {}
    for name in all_algorithms():
        main(["list", "algorithms", name])
        lines = capsys.readouterr().out.splitlines()
        found |= {line.split()[-1]: name for line in lines if line.startswith("Name in DomainBed: ")}
    assert found == {name: name.replace("_", "") for name in DOMAINBED if "_" in name}


def test_list_against_domainbed_is_about_algorithms(capsys):
    assert main(["list", "datasets", "--against", "domainbed"]) == 2
    assert "Expected --against only after algorithms; found it after datasets." in capsys.readouterr().err
    assert main(["list", "algorithms", "POGM", "--against", "domainbed"]) == 2
    assert "found it after algorithms POGM." in capsys.readouterr().err


def test_list_says_what_metrics_mean(capsys):
    assert main(["list", "metrics"]) == 0
    assert re.search(r"^  ece +Expected calibration error, from 0 to 1$", capsys.readouterr().out, re.MULTILINE)


def test_dry_run_prints_the_plan_and_writes_nothing(tmp_path, capsys):
    assert main(["demo", "--dry-run", "--seeds", "1", "--out", str(tmp_path / "demo")]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith(f"{len(lines) - 1} runs of 151 minibatches")
    assert main([*RUN, "--dry-run", "--out", str(tmp_path / "run")]) == 0
    assert json.loads(capsys.readouterr().out)["algorithm"]["name"] == "POGM"
    assert not list(tmp_path.iterdir())


def test_run_prints_a_line_for_each_evaluation_and_a_second_run_does_nothing(tmp_path):
    first = pogm(*RUN, "--out", tmp_path / "run")
    assert first.code == 0
    assert [line.split()[1] for line in first.out.splitlines()] == ["0/20", "10/20", "20/20"]
    assert first.out.splitlines()[1].endswith("s left")
    second = pogm(*RUN, "--out", tmp_path / "run")
    assert (second.code, second.out) == (0, "")
    third = pogm("resume", tmp_path / "run")
    assert (third.code, third.out, "is done already" in third.err) == (0, "", True)
    for end in (first, second, third):
        assert end.err.endswith("\n".join(["", *summary(tmp_path / "run"), ""]))


def summary(folder: Path) -> list[str]:
    """Return the expected summary of a run on RotatedDigits with 75 held out, from its files."""
    selected = json.loads((folder / "model/model.json").read_text())["selection"]
    lines = map(json.loads, (folder / "records.jsonl").read_text().splitlines())
    (record,) = [line for line in lines if line["step"] == selected["step"]]
    steps = json.loads((folder / "trial.json").read_text())["trial"]["steps"]
    return [
        f"Selected: step {selected['step']} of {steps - 1}, by training-domain validation: "
        f"{selected['validation']:.1%} (298 samples)",
        f"Held out: 75 {record['accuracy']['in'][5]:.1%} (240 samples)",
        f"Model: {folder}/model",
        f"Next: pogm evaluate {folder} NEW_SITE",
        f"Or: pogm predict {folder} IMAGES --csv predictions.csv",
        f"Or: pogm export {folder} --to onnx",
        f"Or: pogm report {folder}",
    ]


def test_dry_run_shows_sizes_and_time_and_what_is_left(tmp_path):
    """The trial is on standard output, for programs; the rest is on standard error."""
    folder = tmp_path / "run"
    planned = pogm(*RUN, "--out", folder, "--dry-run")
    assert json.loads(planned.out)["steps"] == 21
    assert "21 minibatches of 32 samples from each of 5 domains, with 3 evaluations; mlp, fp32" in planned.err
    assert "0: training, 240 + 60 samples" in planned.err
    assert "75: held out, 240 + 59 samples" in planned.err
    assert re.search(r"\nTime: about \d+ s; memory: \d\.\d GB\.\n$", planned.err)
    assert not folder.exists()
    assert pogm(*RUN, "--out", folder).code == 0
    before = {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()}
    left = pogm("resume", folder, "--steps", 42, "--dry-run")
    assert (left.code, left.out) == (0, "")
    assert "21 of 42 minibatches are trained already." in left.err
    assert "Time: about" in left.err
    assert {path: path.read_bytes() for path in folder.rglob("*") if path.is_file()} == before


@pytest.mark.parametrize(
    ("words", "found"),
    [
        (["--with", "ITTA"], "In ERM + ITTA on ColoredDigits: Expected a featurizer that names two or more blocks"),
        (["--with", "SWAD", "SMA"], "Expected one modifier that chooses the weights to evaluate; found SWAD and SMA"),
        (["--set", "network=cnn1d"], "In ERM on ColoredDigits: Expected"),
    ],
)
def test_a_combination_that_cannot_be_trained_fails_a_sweep_once_before_its_first_run(tmp_path, capsys, words, found):
    out = tmp_path / "sweep"
    assert main(["sweep", "--algorithms", "ERM", "--datasets", "ColoredDigits", "--out", str(out), *words]) == 2
    assert capsys.readouterr().err.count(found) == 1
    assert not out.exists()


def test_a_method_that_needs_classes_fails_a_sweep_on_a_regression_once(tmp_path, capsys):
    table = write_table(tmp_path / "numbers.csv", regression=True)
    words = ["--algorithms", "ERM", "SagNet", "--datasets", f"{table}:{OPTIONS}"]
    assert main(["sweep", *words, "--out", str(tmp_path / "sweep")]) == 2
    assert "In SagNet on numbers: Expected the loss cross_entropy for SagNet" in capsys.readouterr().err
    assert not (tmp_path / "sweep").exists()


def test_a_sweep_without_models_has_the_same_tables_and_says_why_there_is_no_model(tmp_path, capsys):
    words = ["sweep", "--algorithms", "ERM", "--datasets", "ColoredDigits", "--configurations", "1", "--trials", "1"]
    words += ["--steps", "3", "--device", "cpu", "--workers", "1", "--out"]
    said = []
    for out, more in ((tmp_path / "with", ()), (tmp_path / "without", ("--skip-model-save",))):
        assert main([*words, str(out), *more, "--dry-run"]) == 0
        assert ("models" in capsys.readouterr().out) == (not more)
        assert main([*words, str(out), *more]) == 0
        end = capsys.readouterr()
        said.append(end.out)
        assert ("--to onnx" in end.err) == (not more)
    assert said[0] == said[1]
    names = [{path.name for path in out.glob("*/*")} for out in (tmp_path / "with", tmp_path / "without")]
    assert names[0] - names[1] == {"model"}
    one = next((tmp_path / "without").glob("*/done")).parent
    assert main(["export", str(one), "--to", "onnx"]) == 2
    assert "of a sweep with --skip-model-save, have none" in capsys.readouterr().err
    assert main(["resume", str(tmp_path / "without")]) == 0  # nothing is left to run
    assert main(["resume", str(tmp_path / "without"), "--dry-run"]) == 0


def test_dry_run_refuses_the_folder_of_another_sweep_or_run(tmp_path, capsys):
    """As the real command does. Finished runs of the other sweep would be counted as done, and those of a run, too."""
    words = ["sweep", "--algorithms", "ERM", "--datasets", "RotatedDigits", "--out", str(tmp_path / "sweep")]
    save_sweep(parse(words).sweep(RunOptions()), tmp_path / "sweep")
    assert main([*words, "--dry-run"]) == 0
    assert "360 runs to do" in capsys.readouterr().out
    assert main(["resume", str(tmp_path / "sweep"), "--dry-run"]) == 0
    assert "add --estimate to the command of the sweep" in capsys.readouterr().out  # resume has no such option
    for kind in ("--dry-run", "--estimate"):
        assert main([*words, "--trials", "2", kind]) == 2
        assert "found another sweep: trials is 3 there and 2 here" in capsys.readouterr().err
    run = [*RUN, "--dry-run", "--out", str(tmp_path / "run")]
    write_trial(tmp_path / "run", Trial.from_json(dry_run(*run, capsys=capsys)), {})
    assert dry_run(*run, "--steps", "31", "--allow-change", capsys=capsys)["steps"] == 31
    for changes, found in (
        (["--steps", "31"], "found another run: steps is 21 there and 31 here. Add --allow-change"),
        (["--allow-change", "--seed", "9"], "seed is 0 there and 9 here. Choose another --out."),
    ):
        assert main([*run, *changes]) == 2
        assert found in capsys.readouterr().err
    assert main([*words, "--out", str(tmp_path / "run"), "--dry-run"]) == 2
    assert "to be new or empty; found other files in it" in capsys.readouterr().err


def dry_run(*words: str, capsys) -> dict[str, object]:
    """Return the trial that a dry run of pogm run prints."""
    capsys.readouterr()
    assert main(words) == 0
    found: dict[str, object] = json.loads(capsys.readouterr().out)
    return found


def test_dry_run_without_data_prints_the_trial_and_says_why_the_time_is_not_known(tmp_path, capsys):
    words = ("run", "--dataset", "PACS", "--algorithm", "ERM", "--test-domain", "0", "--device", "cpu", "--dry-run")
    assert main([*words, "--data", str(tmp_path / "absent"), "--out", str(tmp_path / "run")]) == 0
    said = capsys.readouterr()
    assert json.loads(said.out)["dataset"]["name"] == "PACS"
    assert "pogm: The time is not known. Expected the folder PACS in" in said.err


def test_run_with_averaged_weights_or_without_a_held_out_domain_has_a_summary(tmp_path):
    averaged = pogm(*RUN, "--algorithm", "ERM", "--with", "SWAD", "--out", tmp_path / "swad")
    records = [json.loads(line) for line in (tmp_path / "swad/records.jsonl").read_text().splitlines()]
    assert f"Held out: 75 {records[-1]['accuracy']['in'][5]:.1%} (240 samples)" in averaged.err
    words = ("run", "--dataset", "ColoredDigits", "--algorithm", "ERM", "--train-on-all", "--steps", "2")
    everywhere = pogm(*words, "--device", "cpu", "--out", tmp_path / "all")
    assert everywhere.code == 0
    assert "Held out" not in everywhere.err
    assert [line for line in everywhere.err.splitlines() if "pogm " in line] == [
        f"Next: pogm export {tmp_path}/all --to onnx"  # images of two channels are not files, and there is no table
    ]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--dataset", "RotatedDigit"), "Did you mean 'RotatedDigits'?"),
        (("--algorithm", "pogn"), "Did you mean 'POGM'?"),
        (("--set", "kapa=1"), "Did you mean 'kappa'?"),
        (("--set", "kappa=-1"), "at least 0 and at most 1000; found '-1'"),
        (("--set", "kappa=nan"), "found 'nan'"),
        (("--set", "inner_steps=0"), "at least 1 and at most 10000; found '0'"),
        (("--set", "meta_lr=0"), "above 0 and at most 1e+30; found '0'"),
        (("--test-domain", "90"), "a domain of RotatedDigits"),
        (("--test-domain", "0", "--test-domain", "0"), "each once"),
        (("--test-domain", "9" * 5000), "(5002 characters)"),
        (("--set", "kappa=1e155"), "at most 1000; found '1e155'"),
        (("--set", "batch_size=1e30"), "at most 1048576; found '1e30'"),
        (("--set", f"batch_size={'9' * 400}"), "(402 characters)"),
        (("--algorithm", "DANN", "--set", "mlp_depth=1e9"), "at most 100; found '1e9'"),
        (("--algorithm", "IRM", "--set", "penalty_anneal_iters=1e30"), "at most 100000000; found '1e30'"),
        (("--steps", "100000000", "--evaluate-every", "1"), "at most 1000000 evaluations"),
        (("--probe-every", "1", "--steps", "100000000", "--evaluate-every", "100000000"), "at most 1000000 measured"),
        (("--device", "toaster"), "a device such as cpu"),
        (("--device", "cuda:" + "9" * 5000), "(5007 characters)"),
    ],
)
def test_usage_error_is_one_paragraph_with_exit_code_2_and_writes_nothing(tmp_path, capsys, words, message):
    assert main([*RUN, "--out", str(tmp_path / "run"), *words]) == 2
    said = capsys.readouterr().err.strip()
    assert message in said
    assert "Expected" in said
    assert "; found " in said
    assert "\n" not in said.partition("pogm: ")[2]
    assert not list(tmp_path.iterdir())


def test_resume_of_an_absent_folder_is_a_usage_error(capsys):
    assert main(["resume", "/absent"]) == 2
    assert "Expected" in capsys.readouterr().err


def number_options() -> list[tuple[str, argparse.ArgumentParser, argparse.Action]]:
    """Return every option of every command that is a number."""
    return [
        (name, one, action)
        for name, one in parsers()
        for action in one._actions
        if getattr(action.type, "func", action.type) in (int, float, _read_number)
    ]


@pytest.mark.parametrize(
    ("name", "parser", "action"), [pytest.param(*one, id=f"{one[0]} {one[2].dest}") for one in number_options()]
)
def test_numbers_outside_their_limits_are_refused_when_the_command_line_is_read(capsys, name, parser, action):
    _, least, most = action.type.args
    default = default_of(parser.get_default("command"), action.dest)
    assert default in (None, dataclasses.MISSING) or least <= default <= most
    assert action.type(str(least)) == least
    assert action.type(str(most)) == most
    for text in ("nan", "inf", "-inf", "", "many", "-1", str(least - 1), str(most + 1), "1e400", "9" * 5000, "1\0"):
        with pytest.raises(SystemExit) as end:
            parser.parse_args([f"{action.option_strings[0]}={text}"])
        assert end.value.code == 2
        *_, message = capsys.readouterr().err.splitlines()
        assert message.startswith(f"pogm {name}: error: argument {action.option_strings[0]}: Expected a ")
        assert "; found " in message
        assert len(message) < 300


def test_limits_of_options_are_those_of_trials():
    limits = {field.name: field.metadata for field in dataclasses.fields(Trial)}
    for name, _, action in number_options():
        if name == "run" and action.dest in limits:
            _, least, most = action.type.args
            assert (limits[action.dest]["least"], limits[action.dest]["most"]) == (least, most)


@pytest.mark.parametrize(("name", "value"), [("RANK", "x"), ("WORLD_SIZE", "9" * 5000), ("MASTER_PORT", "-1")])
def test_invalid_variables_of_torchrun_are_named(capsys, monkeypatch, name, value):
    for variable, number in torchrun_variables(0, 1, 29500).items():
        monkeypatch.setenv(variable, number)
    monkeypatch.setenv(name, value)
    assert main(["list", "networks"]) == 2
    assert f"pogm: Expected the environment variable {name} to be a whole number from" in capsys.readouterr().err


@pytest.mark.parametrize("words", [["-v"], ["trian"], ["run"], ["run", "--steps", "many"], ["list", "colours"]])
def test_unknown_words_exit_with_code_2_and_show_the_usage(capsys, words):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert "usage: pogm" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["status", "folder", "--stepps", "3"], "unrecognized arguments: --stepps 3"),
        ([*RUN, "--out", "folder", "--stepps", "3"], "Did you mean --steps?"),
        (["statsu"], "Did you mean status?"),
        (["list", "algorithm"], "Did you mean algorithms?"),
        (["run", "--algoritm", "ERM"], "; unrecognized: --algoritm. Did you mean --algorithm?"),
        (["list", "algorithms", "--set"], "unrecognized arguments: --set\n"),  # nothing is near
    ],
)
def test_unknown_words_suggest_the_nearest_name(capsys, words, message):
    with pytest.raises(SystemExit) as end:
        main(words)
    assert end.value.code == 2
    assert message in capsys.readouterr().err


def test_several_values_follow_one_option_or_several_and_may_begin_with_a_minus_and_a_digit():
    words = ["run", "--dataset", "ColoredDigits", "--algorithm", "ERM", "--out", "folder"]
    together = parse([*words, "--test-domain", "+80%", "-90%", "--with", "Mixup", "SWAD"])
    apart = parse([*words, "--test-domain=+80%", "--test-domain", "-90%", "--with", "Mixup", "--with", "SWAD"])
    assert together == apart
    assert together.test_domain == ("+80%", "-90%")
    assert together.modifiers == ("Mixup", "SWAD")


def test_missing_data_exits_with_code_3_and_writes_nothing(tmp_path, capsys):
    words = ("run", "--dataset", "RotatedMNIST", "--algorithm", "ERM", "--test-domain", "0", "--device", "cpu")
    assert main([*words, "--data", str(tmp_path / "absent"), "--out", str(tmp_path / "run")]) == 3
    assert "name another data folder with --data" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(
    ("dataset", "modifiers", "message"),
    [
        ("ColoredMNIST", (), "Expected the folder that holds MNIST/raw; found none given. Pass --data FOLDER"),
        ("HeartDisease", (), "Expected a folder of data with heart/, the files of HeartDisease; found none given."),
        ("ColoredDigits", ("SMA", "EMA"), "Expected one modifier that chooses the weights to evaluate"),
    ],
)
def test_sweep_whose_runs_would_all_fail_is_refused_before_anything_is_written(
    tmp_path, capsys, monkeypatch, dataset, modifiers, message
):
    monkeypatch.delenv("POGM_DATA", raising=False)
    words = ["sweep", "--algorithms", "ERM", "--datasets", dataset, "--out", str(tmp_path / "sweep"), "--device", "cpu"]
    assert main([*words, *(("--with", *modifiers) if modifiers else ())]) in (2, 3)
    assert message in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


def test_extended_sweep_keeps_its_finished_runs(tmp_path, capsys):
    words = ["sweep", "--datasets", "ColoredDigits", "--configurations", "1", "--steps", "2", "--device", "cpu"]
    words += ["--out", str(tmp_path / "s"), "--algorithms", "ERM"]
    assert main([*words, "--trials", "1"]) == 0
    before = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("*/records.jsonl")}
    assert len(before) == 3
    assert main([*words, "Fish", "--trials", "2", "--allow-change"]) == 0
    after = {path: path.stat().st_mtime_ns for path in (tmp_path / "s").glob("*/records.jsonl")}
    assert len(after) == 12
    assert before.items() <= after.items()
    capsys.readouterr()
    assert main(["status", str(tmp_path / "s")]) == 0
    assert "12 runs: 12 done" in capsys.readouterr().out


def test_runs_that_fail_with_the_same_message_are_listed_once(tmp_path, capsys):
    """The network of MADG has batch norm, which SWAD refuses when a run starts."""
    words = ["sweep", "--algorithms", "MADG", "--datasets", "ColoredDigits", "--with", "SWAD", "--device", "cpu"]
    assert main([*words, "--configurations", "1", "--trials", "1", "--steps", "1", "--out", str(tmp_path / "s")]) == 1
    said = capsys.readouterr().err
    assert said.count("Expected frozen batch norm for SWAD") == 1
    assert "Other runs of MADG + SWAD on ColoredDigits with the same message: 2." in said
    assert main(["status", str(tmp_path / "s")]) == 0
    said = capsys.readouterr().err
    assert said.count("Expected frozen batch norm for SWAD") == 1
    assert said.endswith("(and 2 more with the same message)\n")


@pytest.mark.parametrize("form", ["text", "csv", "json", "latex", "html"])
def test_report_of_finished_runs_in_every_format(runs, tmp_path, capsys, form):
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


def test_report_without_finished_runs_is_an_error(tmp_path, capsys):
    assert main(["report", str(tmp_path)]) == 2
    assert "found no run in it. Start one with: pogm run, or pogm sweep" in capsys.readouterr().err
    write_run(tmp_path / "run", done=False)
    assert main(["report", str(tmp_path)]) == 2
    assert "found 1, none of them finished. Continue them: pogm resume FOLDER" in capsys.readouterr().err
    assert main(["report", str(tmp_path / "absent")]) == 3
    assert "found nothing at" in capsys.readouterr().err


def test_report_names_the_settings_that_differ_between_runs_of_one_cell(tmp_path, capsys):
    for kappa in (0.1, 0.2):
        write_run(tmp_path / str(kappa), kappa=kappa)
    assert main(["report", str(tmp_path)]) == 2
    assert "found 2 runs of ERM on Toy that differ in algorithm.kappa. Report them" in capsys.readouterr().err


def test_report_has_a_table_for_each_number_of_training_samples_the_smallest_first(tmp_path, capsys):
    for samples, accuracy in ((None, 0.9), (100, 0.8), (30, 0.7)):
        write_run(tmp_path / str(samples), [make_record(0, [accuracy] * 3, [0.5] * 3)], samples=samples)
    assert main(["report", str(tmp_path), "--json"]) == 0
    tables = json.loads(capsys.readouterr().out)["tables"]
    means = [(table["title"], table["rows"]["ERM"]["A"]["mean"]) for table in tables if "A" in table["columns"]]
    expected = [("Toy (30 samples per domain)", 70), ("Toy (100 samples per domain)", 80), ("Toy", 90)]
    assert list(dict.fromkeys(means)) == expected


def test_report_that_cannot_be_written_is_an_error_without_traceback(runs, tmp_path, capsys):
    (tmp_path / "file").touch()
    assert main(["report", str(runs), "--format", "html", "--out", str(tmp_path / "file" / "below")]) == 3
    assert "pogm: Expected" in capsys.readouterr().err


REPORT_PACKAGES = ("jinja2", "markupsafe", "vl_convert")


def test_without_the_packages_of_reports_report_is_an_error_that_says_what_to_install(
    runs, tmp_path, capsys, monkeypatch
):
    for name in REPORT_PACKAGES:
        monkeypatch.setitem(sys.modules, name, None)
    assert main(["report", str(runs), "--format", "html", "--out", str(tmp_path)]) == 2
    assert "found that it is not installed. Install it: pip install" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_without_the_packages_of_reports_help_and_sweeps_work(tmp_path):
    """A sweep trains, prints its tables, says in one line that there is no report, and succeeds."""
    missing = tmp_path / "missing"
    missing.mkdir()
    for name in REPORT_PACKAGES:
        (missing / f"{name}.py").write_text("raise ImportError")
    path = os.pathsep.join(filter(None, [str(missing), str(Path(pogm_package.__file__).parents[1])]))
    sweep = "sweep --algorithms ERM --datasets ColoredDigits --configurations 1 --trials 1 --steps 3 --evaluate-every 2"
    for words in (["--help"], [*sweep.split(), "--device", "cpu", "--workers", "1", "--out", str(tmp_path / "out")]):
        command = [sys.executable, "-m", "pogm", *words]
        end = subprocess.run(command, capture_output=True, text=True, env=os.environ | {"PYTHONPATH": path})
        assert end.returncode == 0, end.stderr
    assert "Training-domain validation" in end.stdout
    assert [line for line in end.stderr.splitlines() if "The report was not written. Expected the package" in line]
    assert "Traceback" not in end.stderr
    assert len(list((tmp_path / "out").glob("*/done"))) == 3


def test_closed_pipe_ends_a_command_without_messages():
    words = f"{sys.executable} -m pogm list algorithms | head -n 1"
    said = subprocess.run(words, shell=True, capture_output=True, text=True, check=True)
    assert (said.stdout.strip(), said.stderr) == ("risk:", "")


def test_run_continues_when_its_output_is_closed(tmp_path):
    words = [sys.executable, "-m", "pogm", *RUN, "--out", str(tmp_path / "run")]
    with subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL) as process:
        process.stdout.close()
    assert process.returncode == 0
    assert (tmp_path / "run" / "done").exists()


def test_run_with_bf16_trajectories_resumes_with_bf16(tmp_path):
    """bf16 rounds, so the run records it."""
    words = ("run", "--dataset", "RotatedDigits", "--algorithm", "POGM", "--test-domain", "0", "--steps", "11")
    folder = tmp_path / "run"
    stopped = pogm(*words, "--trajectories", "bf16", "--device", "cpu", "--out", folder, fault="term@step:5")
    assert stopped.code == 75
    assert pogm("resume", folder, "--device", "cpu").code == 0
    saved = json.loads((folder / "trial.json").read_text())["provenance"]
    assert saved["trajectories"] == "bf16"


@pytest.mark.parametrize("folder", ["run", "sweep"])
def test_recorded_data_folder_counts_more_than_the_environment_and_less_than_the_option(tmp_path, folder):
    """A user may set POGM_DATA after the training on a folder of images elsewhere, or always."""
    (tmp_path / "other").mkdir()
    sites = write_folder(tmp_path / "hospitals", images=4)
    small = ("network=small_cnn", "weights=random", "image_size=16", "batch_size=2")
    words = ["--device", "cpu", "--out", str(tmp_path / folder), *(word for one in small for word in ("--set", one))]
    if folder == "run":
        chosen = ["run", "--dataset", str(sites), "--algorithm", "ERM", "--test-domain", "west", "--steps", "3"]
    else:
        limits = ["--configurations", "1", "--trials", "1", "--workers", "1", "--steps", "3"]
        chosen = ["sweep", "--algorithms", "ERM", "--datasets", str(sites), *limits]
    if folder == "run":
        assert pogm(*chosen, *words, fault="term@step:2").code == 75
    else:
        assert pogm(*chosen, *words).code == 0
        shutil.rmtree(next((tmp_path / folder).glob("*/done")).parent)
    resume, environment = ("resume", tmp_path / folder, "--device", "cpu"), {"POGM_DATA": str(tmp_path / "other")}
    absent = start(*resume, "--data", tmp_path / "other", **environment).wait()  # given, though equal
    assert absent.code != 0
    assert "other" in absent.err
    end = start(*resume, **environment).wait()
    assert end.code == 0, end.err


def test_resume_of_a_sweep_refuses_spread(tmp_path):
    (tmp_path / "sweep.json").write_text("{}")
    end = pogm("resume", tmp_path, "--spread", "domains")
    assert end.code == 2
    assert "--spread for one run" in end.err
