"""``pogm soup`` and ``pogm ensemble``: from a sweep to a model, its rows in tables, and a start after a crash."""

import json
import shutil
import signal
from pathlib import Path

import pytest
import torch
from combined_runs import member, train
from image_folders import picture, write_folder
from processes import pogm

from pogm import load
from pogm.benchmark.results.accuracy_tables import dataset_table
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.selection import TRAINING_DOMAIN
from pogm.cli import main, parse
from pogm.cli.execution import make_run_options

DEVICE = ("--device", "cpu")


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """Folder with two runs for each of two held-out domains."""
    folder = tmp_path_factory.mktemp("commands") / "sweep"
    trials = [member(n, test_domains=(domain,), steps=6, evaluate_every=5) for domain in (0, 1) for n in (0, 1)]
    return train(folder, *trials)


@pytest.fixture
def sweep(trained, tmp_path) -> Path:
    return Path(shutil.copytree(trained, tmp_path / "sweep"))


def train_two(folder: Path, *words: str) -> None:
    """Train two runs of ERM that share their initial weights and splits."""
    for seed in ("1", "2"):
        shared = ("--seed", seed, "--init-seed", "0", "--data-seed", "0", "--trial-seed", "0")
        assert main(["run", "--algorithm", "ERM", *words, *shared, *DEVICE, "-q", "--out", str(folder / seed)]) == 0


def combinations(folder: Path) -> list:
    return [run for run in read_runs(folder) if "combination" in run.trial]


def test_soup_prints_its_rows_and_the_next_command_and_reports_show_them(sweep, capsys):
    assert main(["soup", str(sweep), *DEVICE]) == 0
    shown = capsys.readouterr()
    for rule in ("greedy", "uniform"):
        assert f"\nERM, {rule} soup " in shown.out
    assert "ERM, uniform soup: mean of the weights of 2 runs; " in shown.out
    assert " of training for 2 models." in shown.out
    assert f"Next: pogm report {sweep}\nOr: pogm export {sweep}/soup/uniform-" in shown.err
    assert len(combinations(sweep)) == 4
    assert all(run.done for run in combinations(sweep))
    assert main(["report", str(sweep), "-q"]) == 0
    assert "ERM, greedy soup" in capsys.readouterr().out
    assert "ERM, greedy soup" in (sweep / "report.html").read_text()
    note = "not by the rule of this table: ERM, greedy soup; ERM, uniform soup."
    for form in ("text", "json", "latex", "html"):
        assert main(["report", str(sweep), "-q", "--format", form]) == 0
        shown = capsys.readouterr().out if form != "html" else (sweep / "report.html").read_text()
        assert note in " ".join(shown.split()), form
    assert "not by the rule" not in dataset_table(read_runs(sweep), "RotatedDigits", TRAINING_DOMAIN).text()


def test_dry_run_checks_and_writes_nothing_and_json_lists_the_members(sweep, capsys):
    assert main(["soup", str(sweep), *DEVICE, "--dry-run", "--json"]) == 0
    plan = json.loads(capsys.readouterr().out)
    assert not (sweep / "soup").exists()
    assert [one["held_out"] for one in plan["groups"]] == [["0"], ["15"]]
    assert all(len(one["members"]) == 2 and one["seconds"] > 0 for one in plan["groups"])
    assert main(["soup", str(sweep), *DEVICE, "--rule", "uniform", "--json", "-q"]) == 0
    found = json.loads(capsys.readouterr().out)
    assert found["groups"][0]["combinations"][0]["label"] == "ERM, uniform soup"
    assert {
        cell["algorithm"] for table in found["tables"] for cell in table.get("rows", []) if "algorithm" in cell
    } >= {"ERM, uniform soup"}
    assert main(["soup", str(sweep), *DEVICE, "--dry-run"]) == 0
    listed = capsys.readouterr().out
    assert listed.count("  done  ") == 2  # uniform
    assert listed.count("  to do  ") == 2  # greedy


def test_runs_on_all_domains_have_validation_scores_instead_of_tables(tmp_path, capsys):
    runs = train(tmp_path / "runs", *(member(n, test_domains=(), steps=6, evaluate_every=5) for n in (0, 1)))
    assert main(["soup", str(runs), *DEVICE, "--dry-run"]) == 0
    assert "RotatedDigits  trained on all domains  ERM, uniform soup  2 runs" in capsys.readouterr().out
    assert main(["soup", str(runs), *DEVICE, "--rule", "uniform"]) == 0
    shown = capsys.readouterr()
    (soup,) = combinations(runs)
    score = load(soup.folder).description["selection"]["validation"]
    line = f"RotatedDigits  trained on all domains  ERM, uniform soup  2 of 2 runs  validation: {score:.1%}"
    assert shown.out == f"{line}  {soup.folder}\n"
    assert f"Next: pogm export {soup.folder}" in shown.err
    assert "pogm report" not in shown.err, "it has nothing to show"
    assert main(["soup", str(runs), *DEVICE, "--rule", "uniform", "--json"]) == 0
    assert json.loads(capsys.readouterr().out)["tables"] == []


def test_ensemble_is_one_model_in_a_folder_of_choice(sweep, tmp_path, capsys):
    out = tmp_path / "ensembles"
    assert main(["ensemble", str(sweep), *DEVICE, "--mean", "probabilities", "--out", str(out)]) == 0
    shown = capsys.readouterr()
    assert f"Next: pogm report {sweep} {out}" in shown.err
    assert "ERM, ensemble of probabilities: mean of the predictions of 2 runs; " in shown.out
    first, second = combinations(out)
    model = load(first.folder)
    assert len(model.network.members) == 2
    x = torch.rand(3, *model.transform.transform.shape)
    assert torch.allclose(model(x).exp().sum(-1), torch.ones(3))  # logarithms of probabilities
    assert not (sweep / "ensemble").exists()
    assert first.held_out != second.held_out


def test_killed_commands_go_on_where_they_stopped(sweep):
    whole = pogm("soup", sweep, *DEVICE, "--rule", "greedy", "--out", sweep.parent / "whole")
    assert whole.code == 0
    words = ("soup", sweep, *DEVICE, "--rule", "greedy")
    killed = pogm(*words, fault="kill@combination:2")
    assert killed.code == -signal.SIGKILL
    (done,) = combinations(sweep)  # the second one has no trial.json yet
    before = (done.folder / "done").stat().st_mtime_ns
    again = pogm(*words)
    assert again.code == 0
    assert (done.folder / "done").stat().st_mtime_ns == before
    found = {run.held_out: run for run in combinations(sweep)}
    expected = {run.held_out: run for run in combinations(sweep.parent / "whole")}
    assert found.keys() == expected.keys() == {"0", "15"}
    for name, run in found.items():
        assert list(run.records) == list(expected[name].records)
        for file in ("model/weights.safetensors", "metrics.json"):
            assert (run.folder / file).read_bytes() == (expected[name].folder / file).read_bytes()


def test_full_disk_leaves_no_half_written_combination(sweep):
    full = pogm("soup", sweep, *DEVICE, "--rule", "uniform", fault="full@write:2")
    assert full.code == 3
    assert "Expected to write" in full.err
    assert combinations(sweep) == []
    assert pogm("soup", sweep, *DEVICE, "--rule", "uniform").code == 0
    assert len(combinations(sweep)) == 2


def test_refusals_have_the_exit_codes_of_their_kind(sweep, tmp_path, capsys):
    assert main(["soup", str(tmp_path / "nowhere")]) == 3
    assert main(["soup", str(sweep), "--pool-trials", "--rule", "greedy"]) == 2
    assert main(["soup", str(sweep), *DEVICE, "--algorithms", "Fish"]) == 2
    train(sweep, member(0, seed=5, init_seed=None, hparams_seed=3, steps=6, evaluate_every=5))
    capsys.readouterr()
    assert main(["soup", str(sweep), *DEVICE]) == 2
    assert "different initial weights" in capsys.readouterr().err
    assert not (sweep / "soup").exists()
    for run in read_runs(sweep):
        (path,) = (run.folder / "model").glob("*.safetensors")
        path.write_bytes(b"")
    damaged = pogm("ensemble", sweep, *DEVICE)
    assert damaged.code == 6
    assert "is left out: Its weights have 0 bytes" in damaged.err


@pytest.mark.filterwarnings("ignore:The given buffer is not writable")  # torch 2.10, in torch.export.load
def test_models_of_images_are_evaluated_predicted_and_exported_like_others(tmp_path, monkeypatch, capsys):
    sites = write_folder(tmp_path / "hospitals", images=8)
    settings = ("network=small_cnn", "weights=random", "image_size=16", "batch_size=4")
    words = ["--dataset", str(sites), "--test-domain", "west", *(word for one in settings for word in ("--set", one))]
    train_two(tmp_path / "runs", *words, "--steps", "6", "--evaluate-every", "5")
    for name in ("cat", "dog"):
        (tmp_path / "new" / name).mkdir(parents=True)
        for number in range(3):
            picture(number, (20, 30), int(name == "dog")).save(tmp_path / "new" / name / f"{number}.png")
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("POGM_DATA", str(tmp_path / "new"))  # the runs recorded another folder, which counts more
    for command, rule in (("soup", "uniform"), ("ensemble", "logits")):
        more = ("--rule", "uniform") if command == "soup" else ()
        assert main([command, "runs", *DEVICE, *more, "-q"]) == 0
        folder = next(Path("runs", command).glob(f"{rule}-*"))
        for form, suffix in (("torch-export", ".pt2"), ("safetensors", ".safetensors")):
            assert main(["export", str(folder), "--to", form, "--out", f"{command}{suffix}"]) == 0
        assert main(["predict", str(folder), "new", "--csv", f"{command}.csv", *DEVICE]) == 0
        capsys.readouterr()
        assert main(["evaluate", str(folder), "new", *DEVICE]) == 0
        assert (
            f"ERM, {'uniform soup' if command == 'soup' else 'ensemble'}, small_cnn: metrics" in capsys.readouterr().out
        )
    program = torch.export.load("ensemble.pt2").module()
    model = load(folder)
    x = torch.randn(4, *model.transform.transform.shape)
    torch.testing.assert_close(program(x), model(x), rtol=1e-4, atol=1e-5)


def test_combined_models_in_onnx_files_predict_as_in_torch(tmp_path):
    import onnxruntime

    settings = ("--set", "network=small_cnn", "--set", "batch_size=4", "--steps", "6", "--evaluate-every", "5")
    train_two(tmp_path / "runs", "--dataset", "RotatedDigits", "--test-domain", "0", *settings)
    for words, rule, name in [
        (("soup", "--rule", "uniform"), "uniform", "ERM, uniform soup"),
        (("ensemble",), "logits", "ERM, ensemble"),
        (("ensemble", "--mean", "probabilities"), "probabilities", "ERM, ensemble of probabilities"),
    ]:
        command, *options = words
        assert main([command, str(tmp_path / "runs"), *DEVICE, *options, "-q"]) == 0
        folder, file = next((tmp_path / "runs" / command).glob(f"{rule}-*")), tmp_path / f"{rule}.onnx"
        assert main(["export", str(folder), "--to", "onnx", "--out", str(file)]) == 0
        session = onnxruntime.InferenceSession(file, providers=["CPUExecutionProvider"])
        model = load(folder)
        for size in (1, 9):
            x = torch.randn(size, *model.transform.transform.shape)
            (logits,) = session.run(["logits"], {"input": x.numpy()})
            torch.testing.assert_close(torch.from_numpy(logits), model(x), rtol=1e-4, atol=1e-5)
        described = json.loads(session.get_modelmeta().custom_metadata_map["pogm.json"])
        assert described["classes"] == list(model.classes)
        assert described["model"]["algorithm"] == model.description["algorithm"] == name


def test_regressions_have_averaged_weights_or_outputs(tmp_path, monkeypatch, capsys):
    draw = torch.Generator().manual_seed(0)
    x = torch.randn(120, 2, generator=draw)
    y = 3 * x[:, 0] - x[:, 1] + 10
    rows = [f"{a:.4f},{b:.4f},{'abc'[i % 3]},{c:.4f}" for i, ((a, b), c) in enumerate(zip(x.tolist(), y, strict=True))]
    (tmp_path / "table.csv").write_text("\n".join(["u,v,site,y", *rows, ""]))
    monkeypatch.chdir(tmp_path)
    words = ["--dataset", "table.csv:label=y,domain=site", "--task", "regression", "--test-domain", "a"]
    train_two(Path("runs"), *words, "--steps", "41", "--evaluate-every", "20")
    assert main(["ensemble", "runs", "--mean", "probabilities", *DEVICE]) == 2
    assert "--mean logits for a regression" in capsys.readouterr().err
    assert main(["soup", "runs", "--rule", "greedy", *DEVICE, "-q"]) == 0
    assert main(["ensemble", "runs", *DEVICE, "-q"]) == 0
    assert "ERM, ensemble" in capsys.readouterr().out
    for run in combinations(Path("runs")):
        (held_out,) = run.test_domains
        assert -1 < run.records[0]["r2"]["in"][held_out] <= 1
    ensemble = next(run for run in combinations(Path("runs")) if run.label == "ERM, ensemble")
    members = [run for run in read_runs("runs") if run.label == "ERM"]
    columns = {"u": [0.1, 2.0], "v": [1.0, -1.0]}
    model, others = load(ensemble.folder), [load(run.folder) for run in members]
    expected = torch.stack([one(one.transform(columns)) for one in others]).mean(0)
    torch.testing.assert_close(model(model.transform(columns)), expected)


def test_sweep_passes_shared_init_on(tmp_path):
    words = ("sweep", "--algorithms", "ERM", "--datasets", "RotatedDigits", "--out", str(tmp_path), "--shared-init")
    command = parse(words)
    assert command.sweep(make_run_options(command.execution)).shared_init
