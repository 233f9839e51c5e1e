"""Code in the documentation runs, and its commands exist with their options.

Pages whose code other tests run: own_loop.md (tests/learner), scikit_learn.md (tests/test_estimators.py), theory.md
(tests/test_theory_page.py), trainers.md and CONTRIBUTING.md (tests/test_readme.py).
tests/deployment/test_deploy_page.py executes the commands of deploy.md.
"""

import csv
import re
import shlex
from pathlib import Path

import numpy as np
import pytest
from image_folders import picture, write_folder

from pogm._system.errors import UsageError
from pogm.cli import VERBS, main, parse
from pogm.cli.config import config_text
from pogm.cli.parser import changed_options

ROOT = Path(__file__).parents[2]
PAGES = {path.relative_to(ROOT).as_posix(): path.read_text() for path in sorted((ROOT / "docs").rglob("*.md"))}
PAGES |= {name: (ROOT / name).read_text() for name in ("README.md", "CONTRIBUTING.md")}
TESTED_ELSEWHERE = tuple(f"docs/{name}.md" for name in ("own_loop", "scikit_learn", "theory", "trainers"))
TESTED_ELSEWHERE += ("CONTRIBUTING.md",)
BLOCKS = {
    name: blocks
    for name, text in PAGES.items()
    if name not in TESTED_ELSEWHERE and (blocks := re.findall(r"```python\n(.*?)```", text, re.DOTALL))
}


def image_model() -> dict[str, object]:
    """Train a model of images for a few steps, and write an image."""
    write_folder(Path("sites"), images=5)
    small = ["--set", "network=small_cnn", "--set", "weights=random", "--set", "image_size=32", "--set", "batch_size=2"]
    run = ["run", "--dataset", "sites", "--algorithm", "ERM", "--test-domain", "west", "--steps", "2", *small]
    assert main([*run, "--out", "model"]) == 0
    picture(0).save("image.png")
    return {}


def table_model() -> dict[str, object]:
    """Train a model of a table for a few steps."""
    numbers = np.random.default_rng(0)
    with open("patients.csv", "w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow(["hospital", "age", "marker", "smoker", "ill"])
        for row in range(60):
            age, marker = numbers.normal(55, 12), numbers.normal()
            writer.writerow(["ABC"[row % 3], age, marker, ("no", "yes")[row % 2], int(marker > 0)])
    dataset = "patients.csv:label=ill,domain=hospital"
    run = ["run", "--dataset", dataset, "--algorithm", "ERM", "--train-on-all", "--steps", "2"]
    assert main([*run, "--out", "runs/table/model"]) == 0
    return {}


def new_algorithm() -> dict[str, object]:
    """Write the algorithm that the page about plug-ins tests."""
    assert main(["new", "algorithm", "WorstGap", "--out", "."]) == 0
    return {}


SURROUNDINGS = {"docs/deploy.md": image_model, "docs/tables.md": table_model, "docs/plugins.md": new_algorithm}


@pytest.mark.parametrize("page", BLOCKS)
def test_python_blocks_run(page, tmp_path, monkeypatch):
    """The blocks of a page run one after another in an empty folder."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.syspath_prepend(tmp_path)
    names = {"__name__": page, **SURROUNDINGS.get(page, dict)()}
    for block in BLOCKS[page]:
        exec(compile(block, page, "exec"), names)


def commands(text: str) -> list[str]:
    """Return the commands in the code blocks of a page: lines that begin with pogm, torchrun or make."""
    blocks = re.findall(r"^```(?:bash|console)?\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    blocks += re.findall(
        r"(?:^(?: {4}|\t).*\n)+", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE), re.M
    )
    lines = "\n".join(blocks).replace("\\\n", " ").splitlines()
    stripped = [re.sub(r"\s+#.*", "", line).strip() for line in lines]
    return [line for line in stripped if re.match(r"(pogm|make) [a-z]|torchrun ", line)]


COMMANDS = [(page, line) for page, text in PAGES.items() for line in commands(text)]


def test_commands_are_found():
    assert len(COMMANDS) > 80


def test_commands_of_blocks_are_valid(tmp_path, monkeypatch):
    """Files of options are the TOML blocks of the pages that begin with their names, or were saved by a command."""
    monkeypatch.chdir(tmp_path)
    for text in PAGES.values():
        for name, content in re.findall(r"^```toml\n# (\S+\.toml)\n(.*?)^```", text, re.DOTALL | re.MULTILINE):
            Path(name).write_text(content)
    targets = re.findall(r"^(\w+):", (ROOT / "Makefile").read_text(), re.MULTILINE)
    for page, line in COMMANDS:
        words = shlex.split(line.split("-m pogm", 1)[-1]) if line.startswith("torchrun") else shlex.split(line)[1:]
        if line.startswith("make"):
            assert words[0] in targets, f"{page}: {line}"
        elif "..." not in words:  # the rest of the command is left out
            try:
                command = parse(words)
            except (SystemExit, UsageError):
                pytest.fail(f"{page}: {line}")
            if command.common.save_config is not None:
                command.common.save_config.write_text(config_text(changed_options(command), line))


def test_commands_in_sentences_exist_with_their_options(capsys):
    verbs = [verb for listed in VERBS.values() for verb in listed]
    for page, text in PAGES.items():
        for line in re.findall(r"`pogm ([^`]*)`", re.sub(r"^```.*?^```", "", text, flags=re.DOTALL | re.MULTILINE)):
            verb, *rest = line.split()
            if verb.isupper():  # pogm COMMAND --help
                continue
            assert verb in verbs, f"{page}: pogm {line}"
            with pytest.raises(SystemExit):
                parse([verb, *(word for word in rest[:1] if verb in ("data", "new") and word.isalpha()), "--help"])
            known = capsys.readouterr().out
            options = [word.split("=")[0] for word in rest if word.startswith("--")]
            assert not [option for option in options if option not in known], f"{page}: pogm {line}"
