"""``pogm data``, and runs on folders of images."""

import http.server
import io
import json
import os
import re
import shutil
import threading
import zipfile
from functools import partial
from pathlib import Path

import pytest
from image_folders import picture, write_folder
from PIL import Image
from processes import pogm, records

from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.runner import RunOptions
from pogm.benchmark.runs.sweep_directory import save_sweep
from pogm.cli import main, parse
from pogm.data import sources
from pogm.data.datasets import all_datasets, dataset_class
from pogm.data.sources.catalogue import CATALOGUE, Publication, PublishedFile

SMALL = ("--set", "network=mlp", "--set", "weights=random", "--set", "image_size=8", "--set", "batch_size=4")
BRIEF = ("--steps", "5", "--evaluate-every", "4", "--device", "cpu")


@pytest.fixture
def folder(tmp_path):
    """Return a folder of images: three domains, two classes, eight images of each."""
    return write_folder(tmp_path / "sites", images=8)


def test_list_shows_every_dataset_and_which_images_are_present(tmp_path, capsys):
    pacs = dataset_class("PACS")
    classes = [str(number) for number in range(7)]
    write_folder(tmp_path / "PACS", pacs.folders, classes, images=1, size=(2, 2))
    assert main(["data", "list", "--data", str(tmp_path)]) == 0
    out = re.sub(" +", " ", capsys.readouterr().out)
    assert "here, 28 images: art_painting 7, cartoon 7, photo 7, sketch 7 (published: 9991 images of 7 classes)" in out
    assert "VLCS missing (10729 images of 5 classes); pogm data fetch VLCS" in out
    assert "OfficeCaltech10 missing (2533 images of 10 classes); copy the published images to <data folder>/O" in out
    assert "RotatedDigits comes with the package" in out


def test_check_exits_with_0_for_a_sound_folder_and_lists_defects_otherwise(folder, capsys):
    assert main(["data", "check", str(folder)]) == 0
    assert "Nothing is wrong." in capsys.readouterr().out
    (folder / "north" / "cat" / "001.png").write_bytes(b"")
    shutil.copy(folder / "south" / "cat" / "002.png", folder / "west" / "dog" / "copy.png")
    assert main(["data", "check", folder.name, "--data", str(folder.parent), "--json"]) == 7
    found = json.loads(capsys.readouterr().out)
    assert [bad["path"] for bad in found["bad"]] == ["north/cat/001.png"]
    assert found["across_domains"] == found["across_classes"] == [["south/cat/002.png", "west/dog/copy.png"]]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("check", "PACZ"), "Did you mean 'PACS'"),
        (("check", "./absent"), "Expected a folder of images, a table or a file of arrays at ./absent; found none."),
        (("check", "RotatedDigits"), "found RotatedDigits, which is not"),
        (("check", "VLCS"), "Pass --data FOLDER"),
        (("fetch", "VLCS"), "Expected a data folder; found none given"),
        (("prepare", "VLCS", "--from", "somewhere"), "Expected a data folder; found none given"),
        (("fetch", "VLCZ", "--data", "here"), "Did you mean 'VLCS'"),
    ],
)
def test_usage_errors(words, message, capsys, monkeypatch):
    monkeypatch.delenv("POGM_DATA", raising=False)
    assert main(["data", *words]) in (2, 3)
    assert message in capsys.readouterr().err


@pytest.mark.parametrize(("word", "right"), [("hosptals", "hospitals"), ("./hosptals/", "./hospitals")])
def test_misspelt_folder_suggests_its_neighbour_and_no_dataset(word, right, tmp_path, monkeypatch, capsys):
    (tmp_path / "hospitals").mkdir()
    monkeypatch.chdir(tmp_path)
    assert main(["data", "check", word]) == 2
    assert f"found none. Did you mean {right}?" in capsys.readouterr().err


@pytest.fixture
def served(tmp_path):
    """Serve a folder on the loopback interface; return the folder and its address."""
    (tmp_path / "served").mkdir()
    handler = partial(_Quiet, directory=str(tmp_path / "served"))
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.01})
    thread.start()
    yield tmp_path / "served", f"http://127.0.0.1:{server.server_address[1]}"
    server.shutdown()
    thread.join()
    server.server_close()


class _Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, *_: object) -> None:
        pass


@pytest.mark.filterwarnings("default")  # printed, as for a user
def test_dataset_is_downloaded_prepared_and_used_for_training(served, tmp_path, monkeypatch, capsys):
    shared, address = served
    pacs = dataset_class("PACS")
    with zipfile.ZipFile(shared / "PACS.zip", "w") as archive:
        for domain in pacs.folders:
            for number in range(7):
                content = io.BytesIO()
                picture(number * 10 + len(domain), (6, 6)).save(content, "PNG")
                for copy in range(2):
                    archive.writestr(f"PACS/kfold/{domain}/class{number}/{copy}.png", content.getvalue())
    source = PublishedFile("PACS.zip", (f"{address}/PACS.zip",), page="")
    monkeypatch.setitem(CATALOGUE, "PACS", Publication((source,), terms="the authors' page"))
    data = tmp_path / "data"
    assert main(["data", "fetch", "PACS", "--data", str(data)]) == 0
    said = capsys.readouterr().err
    assert "terms of use: the authors' page" in said
    assert "Expected a published SHA-256 of PACS.zip" in said
    assert sorted(path.name for path in (data / "PACS").iterdir()) == sorted(pacs.folders)
    command = ["run", "--dataset", "PACS", "--data", str(data), "--algorithm", "ERM", "--test-domain", "sketch"]
    assert main([*command, *SMALL, *BRIEF, "--out", str(tmp_path / "run")]) == 0
    assert "Expected 9991 images of PACS; found 56: 14 instead of 2048 in art_painting" in capsys.readouterr().err
    assert read_runs(tmp_path / "run")[0].test_domains == {3}


def test_folder_of_images_is_run_resumed_and_reported_by_its_name(folder, tmp_path):
    out = tmp_path / "run"
    words = ("run", "--dataset", folder, "--algorithm", "POGM", "--test-domain", "west", *SMALL, *BRIEF, "--out", out)
    killed = pogm(*words, "--checkpoint-seconds", 0, fault="kill@step:3")
    assert killed.code == -9
    assert pogm("resume", out).code == 0, "it knows where its data was"
    assert pogm(*words[:-1], tmp_path / "again").code == 0
    assert records(out) == records(tmp_path / "again")
    (run,) = read_runs(out)
    assert (run.dataset, run.domains) == ("sites", ("north", "south", "west"))


@pytest.mark.filterwarnings("ignore")
@pytest.mark.parametrize("dataset", ["Folder", "PACS"])
def test_run_lists_image_folder_and_reads_index_once(dataset, folder, tmp_path, monkeypatch):
    """The trial, the cache, the loaded images and the record of a run use the same listing and the same index."""
    if dataset == "PACS":
        folder = write_folder(tmp_path / "PACS", dataset_class("PACS").folders, [str(n) for n in range(7)], images=2)
    name = str(folder) if dataset == "Folder" else "PACS"
    listed, read = [], []
    scandir, read_bytes = os.scandir, Path.read_bytes
    monkeypatch.setattr(os, "scandir", lambda path: listed.append(os.fspath(path)) or scandir(path))
    monkeypatch.setattr(Path, "read_bytes", lambda path: read.append(path.parent.name) or read_bytes(path))
    words = ["run", "--dataset", name, "--data", str(tmp_path), "--algorithm", "ERM", "--test-domain"]
    words += ["west" if dataset == "Folder" else "sketch", *SMALL, *BRIEF]
    for out in ("first", "second"):
        listed.clear()
        read.clear()
        assert main([*words, "--out", str(tmp_path / out)]) == 0
        assert listed.count(os.path.realpath(folder)) == 1
        assert read.count("indexes") == 1


def test_moved_and_renamed_folder_gives_the_same_run(folder, tmp_path):
    words = ("--algorithm", "ERM", "--test-domain", "west", *SMALL, *BRIEF, "--dry-run", "--out", tmp_path / "run")
    first = main([str(word) for word in ("run", "--dataset", folder, *words[:-3], "--out", tmp_path / "run")])
    assert first == 0
    moved = Path(shutil.move(folder, tmp_path / "renamed"))
    again = main([str(word) for word in ("run", "--dataset", moved, *words[:-3], "--out", tmp_path / "run")])
    assert again == 0
    assert len(read_runs(tmp_path)) == 1


def test_sweep_takes_a_folder_and_a_name_and_uses_settings_in_every_trial(folder, tmp_path, capsys):
    out = tmp_path / "sweep"
    words = ["sweep", "--algorithms", "ERM", "--datasets", str(folder), "RotatedDigits", "--configurations", "2"]
    words += ["--trials", "1", "--workers", "1", "--set", "network=mlp", "--set", "weights=random", *BRIEF]
    assert main([*words, "--set", "image_size=8", "--out", str(out)]) == 2, "digits have no image_size"
    assert "image_size" in capsys.readouterr().err
    only = [word for word in words if word != "RotatedDigits"]
    assert main([*only, "--set", "image_size=8", "--out", str(out)]) == 0
    runs = read_runs(out)
    assert len(runs) == 6
    assert {run.trial["training"]["network"] for run in runs} == {"mlp"}
    assert len({run.trial["training"]["lr"] for run in runs}) == 2, "the rest is drawn"
    assert main(["status", str(out)]) == 0
    assert "sites  ERM  6 done" in capsys.readouterr().out
    (out / runs[0].id / "done").unlink()
    assert main(["resume", str(out), "--workers", "1", "--device", "cpu"]) == 0, "it knows where its data was"
    assert all(run.done for run in read_runs(out))


def test_dry_run_reads_the_names_of_subfolders_but_no_image(folder, tmp_path, capsys, monkeypatch):
    def refuse(*_, **__):
        raise AssertionError("a dry run must not read images")

    monkeypatch.setattr("pogm.data.images.index.FolderScan.index", refuse)
    words = ["sweep", "--algorithms", "ERM", "POGM", "--datasets", str(folder), "--with", "Mixup", "--device", "cuda"]
    words += ["--configurations", "4", "--trials", "2", "--weights", str(tmp_path / "absent.safetensors")]
    assert main([*words, "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0] == f"{folder}: 3 domains, as many as it has subfolders now."
    assert [line.split() for line in lines[1:4]] == [
        ["runs", "sites", "all"],
        ["ERM", "+", "Mixup", "24", "24"],
        ["POGM", "+", "Mixup", "24", "24"],
    ]
    assert lines[4].startswith("48 runs to do. Their time is not known.")
    words = ["measure", "--algorithms", "ERM", "POGM", "--dataset", str(folder), "--seeds", "2"]
    assert main([*words, "--weights", "absent", "--out", str(tmp_path / "out"), "--dry-run"]) == 0
    assert "4 runs to do. Their time is not known." in capsys.readouterr().out
    assert not (tmp_path / "out").exists()


def test_dry_run_knows_the_sweep_of_an_image_folder_by_its_domains(folder, tmp_path, capsys):
    words = ["sweep", "--algorithms", "ERM", "--datasets", str(folder), "--out", str(tmp_path / "out")]
    save_sweep(parse(words).sweep(RunOptions()), tmp_path / "out")
    assert main([*words, "--dry-run"]) == 0
    (folder / "west").rename(folder / "east")
    assert main([*words, "--dry-run"]) == 2
    assert "found another sweep: datasets is" in capsys.readouterr().err


def test_bad_images_are_refused_or_skipped_with_an_option(folder, tmp_path, capsys):
    (folder / "north" / "cat" / "001.png").write_bytes(b"<html>")
    words = ["run", "--dataset", str(folder), "--algorithm", "ERM", "--test-domain", "west", *SMALL, *BRIEF]
    assert main([*words, "--out", str(tmp_path / "a")]) == 3
    assert "north/cat/001.png" in capsys.readouterr().err
    assert not (tmp_path / "a").exists()
    assert main([*words, "--on-bad-image", "skip", "--out", str(tmp_path / "b")]) == 0
    saved = json.loads((tmp_path / "b" / "trial.json").read_text())
    assert saved["trial"]["dataset"]["on_bad_image"] == "skip"
    assert (saved["provenance"]["bad_images"], saved["provenance"]["bad"]) == (1, ["north/cat/001.png"])


def test_every_published_dataset_can_be_fetched_and_prepared():
    assert set(CATALOGUE) == set(sources.preparations())
    assert set(CATALOGUE) - {"MNIST"} <= set(all_datasets())


def write_metadata(folder: Path) -> Path:
    """Write a metadata file with the columns of WILDS; two images in a row are of one patient."""
    rows = ["filename,y,hospital,patient"]
    for number, path in enumerate(sorted(folder.rglob("*.png"))):
        domain, label, _ = path.relative_to(folder).parts
        rows.append(f"{path.relative_to(folder)},{label},{domain},p{number // 2}")
    (folder / "metadata.csv").write_text("\n".join(rows))
    return folder / "metadata.csv"


def test_run_and_resume_on_a_metadata_file_with_groups(folder, tmp_path):
    table, out = write_metadata(folder), tmp_path / "run"
    words = ["--algorithm", "ERM", "--test-domain", "west", "--out", str(out), *SMALL, *BRIEF]
    assert main(["run", "--dataset", f"{table}:domain=hospital", "--group", "patient", *words]) == 0
    saved = json.loads((out / "trial.json").read_text())["trial"]["dataset"]
    assert (saved["title"], saved["file"]) == ("sites", "metadata.csv")
    assert saved["columns"][-2:] == ["group", "patient"]
    assert main(["resume", str(out), "--data", str(folder.parent)]) == 0


def test_check_of_a_metadata_file_names_wrong_lines(folder, capsys):
    table = write_metadata(folder)
    assert main(["data", "check", str(table), "--group", "patient"]) == 0
    assert "24 groups." in capsys.readouterr().out
    table.write_text(table.read_text().replace("north/cat/001.png,cat", "north/cat/001.png,"))
    assert main(["data", "check", str(table)]) == 3
    assert "in line 3 an empty y" in capsys.readouterr().err


def test_dry_run_of_a_sweep_on_a_metadata_file_reads_no_image(folder, tmp_path, capsys):
    table = write_metadata(folder)
    for path in folder.rglob("*.png"):
        path.write_bytes(b"")
    words = ["sweep", "--datasets", str(table), "--algorithms", "ERM", "--out", str(tmp_path / "sweep"), "--dry-run"]
    assert main(words) == 0
    assert f"{table}: 3 domains, as many as it has in its rows now." in capsys.readouterr().out


def test_group_needs_a_metadata_file(folder, tmp_path, capsys):
    words = ["--algorithm", "ERM", "--test-domain", "west", "--out", str(tmp_path / "run"), "--group", "patient"]
    assert main(["run", "--dataset", str(folder), *words]) == 2
    assert "Expected a metadata file for group=patient" in capsys.readouterr().err
    assert main(["run", "--dataset", str(folder / "missing.csv"), *words]) == 2
    assert "Expected a folder of images, a table or a file of arrays" in capsys.readouterr().err


def test_random_weights_with_frozen_batch_norm_are_refused(tmp_path, capsys):
    root = tmp_path / "sites"
    for site in ("a", "b", "c"):
        for name in ("x", "y"):
            (root / site / name).mkdir(parents=True)
            for number in range(5):
                Image.new("RGB", (32, 32), (10 * number, 0, 0)).save(root / site / name / f"{number}.png")
    words = ["run", "--dataset", str(root), "--algorithm", "ERM", "--test-domain", "c", "--set", "weights=random"]
    words += ["--set", "network=resnet18", "--set", "image_size=32", "--steps", "1", "--device", "cpu", "--out"]
    assert main([*words, str(tmp_path / "run")]) == 2
    assert "Expected batch norm that learns its statistics, for resnet18 with random weights" in capsys.readouterr().err
    assert not (tmp_path / "run").exists()
    assert main([*words, str(tmp_path / "run"), "--set", "freeze_bn=false", "--set", "batch_size=2"]) == 0
