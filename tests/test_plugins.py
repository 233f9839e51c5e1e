"""Plug-ins: classes of other packages, by entry point or by path, in commands, run folders and worker processes."""

import csv
import importlib
import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from pogm import ERM, Learner
from pogm._system.errors import UsageError
from pogm.algorithms import algorithm_class, all_algorithms
from pogm.benchmark.results.model_metrics import selected_metrics_table
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.model_metrics import MetricsWarning, compute_plugin_metrics
from pogm.cli import main
from pogm.cli.new import module_name
from pogm.core import plugins
from pogm.core.state import Loss
from pogm.models import build_features, check_network
from pogm.modifiers import Modifier
from pogm.testing import check_modifier

EXAMPLE = Path(__file__).parents[1] / "examples" / "plugin"

MINE = """
from dataclasses import dataclass
from pogm.algorithms.erm import ERM

@dataclass(frozen=True)
class Mine(ERM):
    '''My method (me, 2026).'''
"""


@pytest.fixture
def importable(monkeypatch):
    """Function that adds a folder to the module search path until the end of the test."""

    def add(folder: Path) -> None:
        monkeypatch.syspath_prepend(folder)
        plugins._entries.cache_clear()

    yield add
    forget_modules()


def forget_modules() -> None:
    """Remove the modules of the tests, so that other tests can define modules of the same names."""
    names = {"mine", "other", "own", "nets", "breaks", "pogm_example", "worst_gap", "test_worst_gap", "test_plugin"}
    for name in [name for name in sys.modules if name.partition(".")[0] in names]:
        del sys.modules[name]
    plugins._entries.cache_clear()


@pytest.fixture
def here(tmp_path, monkeypatch, importable):
    """An empty current folder, which is not on the module search path."""
    monkeypatch.setattr(sys, "path", [path for path in sys.path if path])
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.fixture(scope="module")
def installed(tmp_path_factory) -> Path:
    """Folder into which pip has installed the example package, without a network."""
    folder = tmp_path_factory.mktemp("installed")
    source = shutil.copytree(EXAMPLE, tmp_path_factory.mktemp("source") / "plugin")  # pip writes into the source
    options = ["--quiet", "--disable-pip-version-check", "--no-index", "--no-deps", "--no-build-isolation"]
    subprocess.run([sys.executable, "-m", "pip", "install", *options, "--target", folder, source], check=True)
    return folder


def register(folder: Path, package: str, group: str, **entries: str) -> None:
    """Write the metadata of an installed package with entry points."""
    metadata = folder / f"{package}-1.0.dist-info"
    metadata.mkdir(parents=True)
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {package}\nVersion: 1.0\n")
    lines = [f"{name} = {value}" for name, value in entries.items()]
    (metadata / "entry_points.txt").write_text("\n".join([f"[{group}]", *lines, ""]))


def run_words(algorithm: str, out: Path, *more: str) -> list[str]:
    words = ["run", "--algorithm", algorithm, "--dataset", "RotatedDigits", "--test-domain", "0", "--steps", "3"]
    return [*words, "--evaluate-every", "2", "--out", str(out), *more]


def test_installed_package_adds_methods_data_networks_and_trackers(installed, importable, tmp_path, capsys):
    importable(installed)
    for kind, name in (
        ("algorithms", "SpectralDecoupling"),
        ("modifiers", "ConfidencePenalty"),
        ("datasets", "NoisyDigits"),
        ("networks", "linear"),
        ("trackers", "csv"),
        ("metrics", "brier"),
    ):
        assert main(["list", kind]) == 0
        assert f"{name}  (" in (shown := capsys.readouterr().out)
        assert "plug-in of pogm-example 0.1.0" in shown
    out = tmp_path / "run"
    words = ["run", "--algorithm", "SpectralDecoupling", "--with", "ConfidencePenalty", "--dataset", "NoisyDigits"]
    words += ["--set", "network=linear", "--set", "SpectralDecoupling.penalty=0.2", "--track", "csv"]
    words += ["--set", "ConfidencePenalty.weight=0.3", "--test-domain", "96", "--out", str(out)]
    assert main(words) == 0
    content = json.loads((out / "trial.json").read_text())
    path = "pogm_example.spectral_decoupling:SpectralDecoupling"
    assert content["trial"]["algorithm"] == {"name": path, "penalty": 0.2}
    assert content["trial"]["modifiers"][0]["weight"] == 0.3
    assert content["provenance"]["plugins"][path] == "pogm-example 0.1.0"
    with (out / "metrics.csv").open() as file:
        rows = {(int(step), name): float(value) for step, name, value in csv.reader(file)}
    (run,) = read_runs(out)
    assert rows[200, "accuracy/out/96"] == pytest.approx(run.records[-1]["accuracy"]["out"][3])
    assert run.records[-1]["accuracy"]["out"][0] > 0.8  # logistic regression on digits without noise
    assert (run.label, run.dataset) == ("SpectralDecoupling + ConfidencePenalty", "NoisyDigits")
    metrics = json.loads((out / "metrics.json").read_text())["domains"]["96"]["in"]
    assert 0 < metrics["plugins"]["brier"] < 1
    (row,) = json.loads(selected_metrics_table([run], "NoisyDigits").json())["rows"]
    assert row["brier"]["mean"] == pytest.approx(metrics["plugins"]["brier"])


def test_metric_that_fails_is_left_out_with_a_warning(importable, tmp_path):
    (tmp_path / "nets.py").write_text(
        "def bad(outputs, labels): return 1 / 0\ndef good(outputs, labels): return outputs.sum() + labels.sum()\n"
        "def absent(outputs, labels): return None\nnumber = 3"
    )
    entries = {"bad": "nets:bad", "good": "nets:good", "absent": "nets:absent", "number": "nets:number"}
    register(tmp_path, "package_a", "pogm.metrics", **entries)
    importable(tmp_path)
    with pytest.warns(MetricsWarning) as warned:
        found = compute_plugin_metrics("classification", np.zeros((4, 2)), np.ones(4, int))
    assert found == {"good": 8.0}  # four samples whose probabilities sum to 1, and four labels
    texts = sorted(str(warning.message) for warning in warned)
    assert texts[0] == "The metric bad of package_a 1.0 failed and is left out. ZeroDivisionError: division by zero"
    assert "Expected the metric number to be a function of outputs and labels; found int" in texts[1]
    with pytest.warns(MetricsWarning):
        assert compute_plugin_metrics("regression", np.full((3, 1), 2.0), np.ones(3)) == {"good": 9.0}


def test_run_folder_without_its_package_can_be_reported_and_resume_names_the_package(
    installed, importable, here, capsys, monkeypatch
):
    with monkeypatch.context() as context:
        context.syspath_prepend(installed)
        plugins._entries.cache_clear()
        assert main(run_words("SpectralDecoupling", here / "run")) == 0
        assert main(run_words("ERM", here / "other", "--set", "network=linear")) == 0
    forget_modules()
    capsys.readouterr()
    assert main(["report", str(here / "run")]) == 0
    assert "SpectralDecoupling" in capsys.readouterr().out
    assert main(["resume", str(here / "run")]) == 2
    assert (
        "Expected the package pogm_example with the algorithm pogm_example.spectral_decoupling:SpectralDecoupling; "
        f"found that it is neither installed nor in the current folder, {here}." in (said := capsys.readouterr().err)
    )
    assert "(pogm-example 0.1.0)" in said
    assert main(["resume", str(here / "other")]) == 2
    assert "found 'linear'" in (said := capsys.readouterr().err)
    assert "The run began with linear (pogm-example 0.1.0)." in said


def test_worker_processes_find_a_class_in_the_current_folder(here, capsys):
    (here / "mine.py").write_text(MINE)
    words = ["sweep", "--algorithms", "ERM", "mine:Mine", "--datasets", "ColoredDigits", "--configurations", "1"]
    words += ["--trials", "1", "--steps", "3", "--workers", "2", "--out", str(here / "sweep")]
    assert main(words) == 0
    runs = read_runs(here / "sweep")
    assert {(run.label, run.status) for run in runs} == {("ERM", "done"), ("Mine", "done")}
    assert main(words) == 0  # the same sweep: nothing is left
    assert main(["status", str(here / "sweep")]) == 0
    assert "ColoredDigits  mine:Mine  3 done" in capsys.readouterr().out


def test_experiment_over_all_methods_has_a_row_for_a_class_of_another_package(here, capsys):
    (here / "mine.py").write_text(MINE)
    words = ["experiment", "all_methods", "--scale", "embedded", "--algorithms", "ERM", "mine:Mine", "--dry-run"]
    assert main([*words, "--out", str(here / "runs")]) == 0
    out = capsys.readouterr().out
    assert "mine:Mine" in out
    assert "Fishr" not in out


def test_name_does_not_depend_on_the_entry_point(importable, tmp_path):
    (tmp_path / "mine.py").write_text(MINE)
    register(tmp_path, "package_a", "pogm.algorithms", Short="mine:Mine")
    importable(tmp_path)
    assert algorithm_class("Short") is algorithm_class("mine:Mine")
    assert plugins.registered_name(algorithm_class("Short")) == "mine:Mine"
    assert plugins.registered_name(algorithm_class("ERM")) == "ERM"


def test_labels_are_short_unless_two_classes_have_one_name(here):
    for module, text in (("mine", MINE), ("other", MINE), ("own", MINE.replace("class Mine", "class VREx"))):
        (here / f"{module}.py").write_text(text)
    for name in ("mine:Mine", "own:VREx"):
        assert main(run_words(name, here / "runs" / name.partition(":")[0])) == 0
    assert {run.label for run in read_runs(here / "runs")} == {"Mine", "own:VREx"}
    assert main(run_words("other:Mine", here / "runs" / "other")) == 0
    assert {run.label for run in read_runs(here / "runs")} == {"mine:Mine", "other:Mine", "own:VREx"}


def test_broken_package_is_shown_as_broken_and_affects_nothing_else(importable, tmp_path, capsys):
    (tmp_path / "breaks.py").write_text("raise RuntimeError('no such library')")
    (tmp_path / "mine.py").write_text(MINE)
    register(tmp_path, "package_a", "pogm.algorithms", Broken="breaks:Broken", Twice="mine:Mine", ERM="mine:Mine")
    register(tmp_path, "package_b", "pogm.algorithms", Twice="mine:Mine", Works="mine:Mine")
    importable(tmp_path)
    assert main(["list", "algorithms"]) == 0
    shown = capsys.readouterr().out
    assert "Broken  (plug-in of package_a 1.0: broken)\n  Expected to import the algorithm Broken" in shown
    assert "Twice  (plug-in of package_a 1.0 and package_b 1.0: broken)" in shown
    assert "ERM  (plug-in of package_a 1.0: broken)\n  Expected another name than one of pogm" in shown
    assert "Works  (plug-in of package_b 1.0)\n  My method (me, 2026)." in shown
    assert algorithm_class("ERM") is all_algorithms()["ERM"]
    assert main(run_words("Broken", tmp_path / "run")) == 2
    assert capsys.readouterr().err == (
        "pogm: Expected to import the algorithm Broken of the package package_a 1.0; found RuntimeError: no such "
        "library. Repair that package, or uninstall it.\n"
    )
    with pytest.raises(UsageError, match=r"found package_a 1\.0 and package_b 1\.0\. Uninstall one of them, or give"):
        algorithm_class("Twice")
    assert main(run_words("ERM", tmp_path / "run")) == 0


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("", "Expected the algorithm Mine in the module mine of the package mine; found no such name"),
        ("Mine = 3", "Expected the algorithm mine:Mine to be a subclass of pogm.algorithms.base.Algorithm; found int"),
        ("class Mine: pass", "found a subclass of object. Derive it from pogm.algorithms.base"),
        (MINE.replace("@dataclass(frozen=True)", "") + "    a: float = field()", "Add @dataclass"),
        (MINE + "    a: float", "to have a default for every field; found: .*'a'. Add the defaults"),
        ("import numpyy", "Expected to import the algorithm mine:Mine .*found ModuleNotFoundError: .*numpyy"),
        ("import sys; sys.exit(3)", "found SystemExit: 3"),
        ("x = (", "found SyntaxError"),
    ],
)
def test_class_that_cannot_be_used_is_an_error_that_says_why(here, text, message):
    (here / "mine.py").write_text(text.replace("dataclass\n", "dataclass, field\n"))
    importlib.invalidate_caches()
    with pytest.raises(UsageError, match=message):
        algorithm_class("mine:Mine")


def test_unknown_name_suggests_the_name_of_a_plugin(importable, tmp_path):
    register(tmp_path, "package_a", "pogm.algorithms", Gradually="mine:Mine")
    importable(tmp_path)
    with pytest.raises(UsageError, match="Did you mean 'Gradually'"):
        algorithm_class("Gradualy")


def test_network_that_is_no_featurizer_is_an_error(here):
    (here / "nets.py").write_text("from torch import nn\nbuild = lambda shape: nn.Flatten()\nnumber = 3")
    with pytest.raises(UsageError, match=r"nets:build to return a .*Featurizer; found Flatten"):
        build_features("nets:build", (1, 8, 8))
    with pytest.raises(UsageError, match="nets:number to be a function"):
        check_network("nets:number")


@pytest.mark.parametrize(
    ("returned", "message"),
    [
        (lambda risks: risks.mean(), r"a Loss of a scalar tensor from Wrong.loss; found a Tensor of shape \[\]"),
        (Loss, r"a Loss of a scalar tensor from Wrong.loss; found a Loss of a Tensor of shape \[2\]"),
        (lambda risks: None, "found a NoneType. Return Loss"),
        (lambda risks: Loss(risks.mean(), {"gap": 0.5}), "tensors as metrics from Wrong.loss; found gap, a float"),
    ],
)
def test_loss_of_another_form_is_an_error_that_says_why(returned, message):
    class Wrong(ERM):
        def loss(self, model, batch, state):
            return returned(model.risks(batch))

    learner = Learner(torch.nn.Linear(4, 3), Wrong())
    with pytest.raises(UsageError, match=message):
        learner.step([(torch.randn(8, 4), torch.arange(8) % 3) for _ in range(2)])


def test_entry_points_are_read_only_when_pogm_does_not_have_a_name():
    plugins._entries.cache_clear()
    assert algorithm_class("ERM").__name__ == "ERM"
    build_features("mlp", (1, 8, 8))
    assert plugins._entries.cache_info().currsize == 0


def test_new_algorithm_and_the_example_package_pass_their_tests(installed, importable, tmp_path, capsys):
    assert main(["new", "algorithm", "WorstGap", "--out", str(tmp_path)]) == 0
    assert "pogm run --algorithm worst_gap:WorstGap --dataset RotatedDigits" in capsys.readouterr().out
    for folder in (tmp_path, EXAMPLE, installed):
        importable(folder)
    for module, count in (("test_worst_gap", 3), ("test_plugin", 5)):
        tests = [value for name, value in vars(importlib.import_module(module)).items() if name.startswith("test_")]
        assert len(tests) == count
        for test in tests:
            if test.__name__ != "test_contract_of_the_algorithm":  # of the example; the generated test calls it, too
                test()
    assert main(["new", "algorithm", "WorstGap", "--out", str(tmp_path)]) == 2
    assert "Expected to write new files; found" in capsys.readouterr().err


@pytest.mark.parametrize("name", ["worst gap", "gap", "1Gap", "Random", "Import", "Pogm"])
def test_new_algorithm_refuses_a_name_that_cannot_be_a_class_or_a_module(name, tmp_path, capsys):
    assert main(["new", "algorithm", name, "--out", str(tmp_path / "new")]) == 2
    assert f"found {name!r}" in capsys.readouterr().err
    assert not (tmp_path / "new").exists()


def test_module_names():
    names = {"WorstGap": "worst_gap", "GroupDRO": "group_dro", "ERM": "erm", "SAMNet2": "sam_net2"}
    assert {name: module_name(name) for name in names} == names


class Nothing(Modifier):
    """A modifier that overrides no hook."""


def test_contract_of_modifiers_finds_one_that_does_nothing():
    runs = ["check_modifier_batched_trials", "check_modifier_loop_and_vmap", "check_modifier_resume"]
    with pytest.raises(AssertionError, match=r"Nothing fails 1 of 4 [\s\S]*Expected a modifier to override a hook"):
        check_modifier(Nothing, skip=runs)
