"""--json, --quiet and --verbose, pogm doctor, pogm list NAME, and shell completion."""

import argparse
import io
import json
import subprocess
import sys
from importlib import metadata
from pathlib import Path

import pytest
from processes import SHORT

from pogm.algorithms import all_algorithms
from pogm.benchmark.descriptions import DESCRIBED, describe_all
from pogm.cli import completion, doctor, main, parse, parser
from pogm.core.hyperparameters import fields
from pogm.data.datasets import named_datasets
from pogm.data.images.store import CACHE_VARIABLE, cache_directory
from pogm.experiments import all_experiments
from pogm.experiments.base import SCALES
from pogm.models import all_networks
from pogm.modifiers import all_modifiers
from pogm.trackers import all_trackers

RUN = ["run", "--dataset", "RotatedDigits", "--algorithm", "ERM", *SHORT, "--steps", "11"]


def document(out: str) -> dict[str, object]:
    """Return the one document on standard output; names of its fields are in snake case."""
    found = json.loads(out)
    assert all(key == key.lower().replace("-", "_").replace(" ", "_") for key in found)
    return found


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A finished run, and what the command printed with --json and -v."""
    folder = tmp_path_factory.mktemp("runs") / "first"
    capture = pytest.MonkeyPatch()
    out, err = io.StringIO(), io.StringIO()
    capture.setattr(sys, "stdout", out)
    capture.setattr(sys, "stderr", err)
    code = main([*RUN, "--out", str(folder), "--json", "-v"])
    capture.undo()
    assert code == 0
    return folder, out.getvalue(), err.getvalue()


def test_run_prints_one_document_and_the_rest_on_standard_error(run):
    folder, out, err = run
    found = document(out)
    assert (found["command"], found["folder"], found["done"]) == ("run", str(folder), True)
    assert found["held_out"][0]["domain"] == "75"
    assert 0 <= found["held_out"][0]["accuracy"] <= 1
    assert "step 10/10" in err


def test_verbose_says_the_device_the_compile_decision_and_the_checkpoints(run):
    _, _, err = run
    for text in ("Device cpu", "compile off", "Wrote checkpoint", "Finished in"):
        assert text in err


def test_quiet_leaves_out_progress_and_notes_but_not_results_and_errors(run, capsys):
    folder, _, _ = run
    assert main(["resume", str(folder), "-q"]) == 0
    captured = capsys.readouterr()
    assert "is done already" not in captured.err
    assert "Next:" not in captured.err
    assert "Selected: step" in captured.err
    assert main(["resume", "nothing", "-q"]) != 0
    assert capsys.readouterr().err.startswith("pogm: ")


def test_commands_that_read_runs_print_documents(run, capsys, tmp_path):
    folder = str(run[0])
    for words, key in (
        (["status", folder, "--json"], "total"),
        (["status", "--json", folder], "total"),
        (["report", folder, "--json", "--out", str(tmp_path)], "tables"),
        (["resume", folder, "--json"], "selected"),
        (["export", folder, "--to", "safetensors", "--out", str(tmp_path / "x.safetensors"), "--json"], "difference"),
        (["sweep", "--algorithms", "ERM", "--datasets", "RotatedDigits", "--out", "s", "--dry-run", "--json"], "left"),
        (["measure", "--dry-run", "--json"], "left"),
        (["experiment", "table2", "--scale", "embedded", "--dry-run", "--json", "--out", str(tmp_path)], "left"),
        (["data", "list", "--json"], "datasets"),
        (["list", "metrics", "--json"], "items"),
    ):
        assert main(words) == 0, words
        found = document(capsys.readouterr().out)
        assert key in found
        assert found["command"] in " ".join(words)


def test_json_in_a_file_is_written_beside_the_text_and_a_folder_is_refused(run, capsys, tmp_path):
    folder = str(run[0])
    assert main(["status", folder, "--json", str(tmp_path / "status.json")]) == 0
    assert "1 run: 1 done" in capsys.readouterr().out
    assert json.loads((tmp_path / "status.json").read_text())["total"]["done"] == 1
    assert main(["report", folder, "--json", str(tmp_path)]) == 2
    assert "Write --json at the end" in capsys.readouterr().err


def test_verbosity_may_come_before_the_command():
    assert parse(["-q", "data", "check", "PACS"]) == parse(["data", "check", "PACS", "-q"])
    assert parse(["--verbose", "list", "algorithms"]).common.verbose


def test_a_missing_argument_is_reported_once(capsys):
    with pytest.raises(SystemExit) as end:
        parse(["status", "--json"])
    assert end.value.code == 2
    assert capsys.readouterr().err.count("required: FOLDER") == 1


@pytest.mark.parametrize("kind", DESCRIBED)
def test_every_name_is_described_with_its_hyperparameters_and_a_valid_example(kind):
    for found in describe_all(kind):
        assert found["text"] or kind == "networks"
        assert all(one["help"] for one in found["hyperparameters"]), found["name"]
        parse(found["example"].split()[1:])


def test_list_describes_one_algorithm(capsys):
    assert main(["list", "algorithms", "POGM"]) == 0
    out = capsys.readouterr().out
    assert "Paper: Do et al., ECAI" in out
    assert "kappa = 0.1" in out
    assert "radius of the ball" in out
    assert all(f"  {field.name} = " in out for field in fields(all_algorithms()["POGM"]))
    assert main(["list", "algorithms", "POGMM"]) == 2
    assert "Did you mean 'POGM'?" in capsys.readouterr().err
    assert main(["list", "metrics", "POGM"]) == 2


def test_doctor_finds_packages_extras_and_datasets(capsys, monkeypatch, tmp_path):
    monkeypatch.setenv(CACHE_VARIABLE, str(tmp_path / "cache"))
    (tmp_path / "cache").mkdir()
    (tmp_path / "cache" / "file").write_bytes(b"12345")
    assert main(["doctor", "--json", "--data", str(tmp_path / "none")]) == 0
    found = document(capsys.readouterr().out)
    assert found["packages"]["torch"] == metadata.version("torch")
    assert found["datasets"]["RotatedDigits"] == "comes with the package"
    assert found["cache"]["bytes"] == 5
    assert any("does not exist" in warning for warning in found["warnings"])
    assert doctor.cache_folder() == cache_directory()


def test_doctor_reports_a_missing_package_and_a_missing_extra(capsys, monkeypatch):
    monkeypatch.setattr(doctor, "NEEDED", (*doctor.NEEDED, "no-such-package"))
    monkeypatch.setattr(doctor.metadata, "requires", lambda name: ['no-such-extra>=1; extra == "some"'])
    assert main(["doctor"]) == 1
    out = capsys.readouterr().out
    assert "no-such-package missing" in out
    assert "not installed; pip install 'pogm[some]'" in out
    assert "Something that pogm needs is missing." in out


def test_completion_has_the_names_of_the_registries():
    assert completion.algorithm_names() == list(all_algorithms())
    assert completion.modifier_names() == list(all_modifiers())
    assert completion.dataset_names() == list(named_datasets())
    assert completion.network_names() == list(all_networks())
    assert completion.experiment_names() == [*sorted(all_experiments()), "paper", "all"]
    assert tuple(SCALES) == completion.SCALES
    assert tuple(all_trackers()) == completion.TRACKERS
    assert completion.listed_names(argparse.Namespace(what="modifiers")) == list(all_modifiers())


@pytest.mark.parametrize("name", sorted(all_algorithms()))
def test_completion_of_set_has_every_hyperparameter_of_the_algorithm(name):
    values = argparse.Namespace(algorithm=name, dataset="RotatedDigits")
    expected = {field.name for field in fields(all_algorithms()[name])}
    expected |= {field.name for field in fields(named_datasets()["RotatedDigits"]().training)}
    assert {one.removesuffix("=") for one in completion.setting_names(values)} == expected


def complete(*words):
    """Return what a shell suggests for the last word: the completer of the action, given the words before it."""
    (top,) = (one for one in parser()._actions if isinstance(one, argparse._SubParsersAction))
    command = top.choices[words[0]]
    if isinstance(nested := command._actions[-1], argparse._SubParsersAction):
        command = nested.choices[words[1]]
    *_, before, prefix = words
    flags = {flag: one for one in command._actions for flag in one.option_strings}
    action = flags.get(before) or next(one for one in command._actions if not one.option_strings)
    return action.completer(prefix, argparse.Namespace(algorithms=["ERM", "POGM"]))


def test_completion_of_a_setting_of_one_algorithm():
    assert complete("sweep", "--set", "POGM.kap") == ["POGM.kappa="]
    assert complete("sweep", "--set", "Mixup.alp") == ["Mixup.alpha="]
    assert complete("sweep", "--set", "POGN.") == []


@pytest.mark.parametrize(
    "words", [("run", "--dataset"), ("train",), ("verdict",), ("data", "check"), ("data", "features")]
)
def test_completion_of_a_dataset_has_its_name_and_paths(words, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "sites").mkdir()
    (tmp_path / "Rotated.csv").touch()
    assert complete(*words, "Rotated") == ["RotatedDigits", "RotatedMNIST", "Rotated.csv"]
    assert complete(*words, "./si") == ["./sites/"]


def test_completion_does_not_import_torch():
    program = (
        "import sys\nfrom pogm.cli import completion\n"
        "assert all(complete(None) or name == 'listed' for name, complete in completion.COMPLETERS.items())\n"
        "assert 'torch' not in sys.modules\n"
    )
    subprocess.run([sys.executable, "-c", program], check=True)


@pytest.mark.parametrize(
    "words",
    [
        ["sweep", "--algorithms", "ERM", "POGM", "--datasets", "ColoredDigits", "--out", "out"],
        ["measure", "--algorithms", "ERM", "POGM", "--out", "out"],
        ["experiment", "table2", "--scale", "embedded", "--out", "out"],
    ],
)
@pytest.mark.parametrize("setting", ["kapa=0.1", "POGM.kappa=x", "lr=nan", "lr"])
def test_an_invalid_setting_fails_before_the_first_run(words, setting, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert main([*words, "--set", setting]) == 2
    assert capsys.readouterr().err.count("pogm: ") == 1
    assert not list(Path().iterdir())
