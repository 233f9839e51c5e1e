"""The notebooks run, print something new in every place where an output is stored, and the figures are up to date."""

import importlib.util
import json
from pathlib import Path

import pytest
from processes import CONTEXT

from pogm.benchmark.executors import worker

DOCS = Path(__file__).parents[2] / "docs"


def load(name):
    """Return a script of the documentation as a module."""
    spec = importlib.util.spec_from_file_location(name, DOCS / f"{name}.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    return script


SCRIPT = load("run_notebooks")


@pytest.mark.parametrize("path", SCRIPT.NOTEBOOKS, ids=lambda path: path.stem)
def test_notebook_runs(path, tmp_path, monkeypatch):
    monkeypatch.setattr(worker.multiprocessing, "get_context", lambda _: CONTEXT)  # workers that start in 0.1 s
    notebook = json.loads(path.read_text())
    printed = SCRIPT.run_cells(notebook, tmp_path)
    stored = ["".join(line for out in cell["outputs"] for line in out["text"]) for cell in SCRIPT.code_cells(notebook)]
    assert [bool(text) for text in printed] == [bool(text) for text in stored]
    assert any(printed)


def test_there_are_two_notebooks():
    assert [path.stem for path in SCRIPT.NOTEBOOKS] == ["own_images", "own_loop"]


def test_figures_of_the_concepts_page_are_up_to_date():
    script = load("figures")
    for figure in script.FIGURES:
        written = (DOCS / f"images/concept_{figure.__name__}.svg").read_text()
        assert figure().svg() == written, "Draw them again: python docs/figures.py"
