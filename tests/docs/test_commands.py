"""The commands of README.md and docs work: those of a page are executed in order, in an empty folder.

Commands are executed as written, with options appended that make them short (`shorten`). Folders and tables that belong
to the user, such as ``./hospitals``, are made before. `NOT_EXECUTED` lists the others, with the reasons;
test_code_blocks.py parses them.
"""

import csv
import re
import shlex
from pathlib import Path

import pytest
from image_folders import picture, write_folder
from test_code_blocks import COMMANDS, PAGES

from pogm.cli import main

NOT_EXECUTED = {  # patterns of commands, and why they are not executed here
    r"make ": "installs packages and takes minutes; test_code_blocks.py checks that the target exists",
    r"torchrun ": "needs several processes; tests/distributed runs it",
    r"pogm board ": "serves pages until it is stopped; tests/cli/test_board_command.py",
    r".*--executor ": "needs a cluster; tests/benchmark/runs has tests of Slurm and Ray",
    r"pogm resume /shared": "needs a cluster",
    r"pogm data (fetch|prepare) ": "downloads, or needs downloaded files; tests/cli/test_data_commands.py",
    r"pogm (run|experiment|sweep) (?!.*--dry-run).*(PACS|DomainNet|--data )": "needs a dataset that has no copy here",
    r"pogm export model --to onnx": "takes seconds; tests/deployment/test_deploy_page.py executes it",
    r".* domainbed/sweep": "needs a sweep of DomainBed; tests/benchmark/test_domainbed.py",
    r"pogm .*/COMBINATION": "the name of the folder depends on the runs; tests/cli/test_combining_commands.py",
    r"pogm report results": "needs the records of the repository; tests/cli and tests/test_results.py read them",
    r".* \.\.\.$": "the rest of the command is left out",
    r"pogm run --algorithm SpectralDecoupling": "needs an installed plug-in; tests/test_plugins.py",
}
ELSEWHERE = {"docs/deploy.md": "tests/deployment/test_deploy_page.py"}  # executes the commands of the page
SMALL_IMAGES = ["network=small_cnn", "weights=random", "image_size=32", "batch_size=2"]
EXECUTED = {}
for _page, _line in dict.fromkeys(COMMANDS):
    if _page not in ELSEWHERE and not any(re.match(pattern, _line) for pattern in NOT_EXECUTED):
        EXECUTED.setdefault(_page, []).append(_line)


def shorten(words: list[str], later: list[str]) -> list[str]:
    """Return the words of a command, with options that make it short. A later option overrides an earlier one.

    Args:
        words: The words.
        later: The commands after it. A sweep that none of them reads is only planned.
    """
    verb, has_images = words[0], any(re.search("hospitals|sites/", word) for word in words)
    added = []
    computes_features = words[:2] == ["data", "features"] and "--like" not in words
    if has_images and (verb in ("run", "sweep", "measure", "train", "verdict") or computes_features):
        added += [word for setting in SMALL_IMAGES for word in ("--set", setting)]
    if verb in ("run", "measure", "sweep", "train"):
        added += ["--steps", "2"]
    if verb == "resume" and "--steps" in words:
        added += ["--steps", "3"]
    if verb == "sweep":
        is_read = any("--out" in words and words[words.index("--out") + 1] in shlex.split(line) for line in later)
        configurations = "2" if "--shared-init" in words else "1"  # a soup needs two runs
        added += [
            "--configurations",
            configurations,
            "--trials",
            "1",
            "--workers",
            "1",
            *([] if is_read else ["--dry-run"]),
        ]
    if verb == "measure":
        added += ["--seeds", "1", "--workers", "1"]
    if verb == "train":
        added += ["--workers", "1"]
    if verb == "experiment" and "--dry-run" not in words:
        added += ["--dry-run"]
    return words + added


def write_user_files() -> None:
    """Write what the pages expect from the user: images, metadata files, tables and options."""
    write_folder(Path("hospitals"), ("site_a", "site_b", "site_c"), images=4)
    write_folder(Path("new_site"), ("",), images=3)
    write_folder(Path("sites"), ("north", "south", "west"), images=4)
    Path("images").mkdir()
    picture(0).save("images/one.png")
    files = sorted(Path("sites").rglob("*.png"))
    rows = [
        (str(file.relative_to("sites")), file.parent.name, file.parts[1], f"patient {i // 2}")
        for i, file in enumerate(files)
    ]
    write_table("sites/metadata.csv", ("path", "label", "domain", "group"), rows)
    write_table("sites/scans.csv", ("id", "diagnosis", "scanner", "patient"), rows)
    patients = [
        (30 + i % 50, i % 7, ("no", "yes")[i % 2], f"p{i}", ("north", "south", "west")[i % 3]) for i in range(60)
    ]
    names = ("age", "marker", "smoker", "patient", "hospital")
    outcomes = [(*row, int(row[1] > 3)) for row in patients]
    write_table("patients.csv", (*names, "outcome"), outcomes)
    write_table("new_patients.csv", (*names, "outcome"), outcomes[:12])
    for name in ("table.csv", "ablation.csv"):
        write_table(name, ("algorithm", "PACS", "VLCS", "avg"), [("ERM", 85.5, 77.5, 81.5), ("Mine", 86.1, 78.1, 83.1)])
    for text in PAGES.values():
        for name, content in re.findall(r"^```toml\n# (\S+\.toml)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            Path(name).write_text(content)


def write_table(name: str, header: tuple[str, ...], rows: list[tuple[object, ...]]) -> None:
    with open(name, "w", newline="") as file:
        csv.writer(file).writerows([header, *rows])


def execute(lines: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    for number, line in enumerate(lines):
        words = shorten(shlex.split(line)[1:], lines[number + 1 :])
        code = main(words)
        said = capsys.readouterr()
        assert code == (7 if words[0] == "audit" else 0), f"{shlex.join(words)}\n{said.out[-1000:]}\n{said.err[-2000:]}"


def test_every_reason_is_used():
    lines = [line for _, line in COMMANDS]
    assert not [pattern for pattern in NOT_EXECUTED if not any(re.match(pattern, line) for line in lines)]
    assert sum(map(len, EXECUTED.values())) > 60


@pytest.mark.filterwarnings("ignore:DomainBed's collector prints no table")  # the tour has a dataset of its own
@pytest.mark.parametrize("page", [page for page in EXECUTED if page != "docs/tour.md"])  # docs/guides.md executes it
def test_commands_of_a_page_work(page, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    write_user_files()
    before = EXECUTED["docs/tour.md"] if page == "docs/guides.md" else []  # it uses the folders of the tour
    execute([*before, *EXECUTED[page]], capsys)
