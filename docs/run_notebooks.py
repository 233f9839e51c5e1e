"""Run the notebooks and store their outputs: ``python docs/run_notebooks.py``.

The cells run in this process, without a Jupyter kernel. Each notebook runs in an empty folder.
"""

import contextlib
import io
import json
import os
import tempfile
from pathlib import Path
from typing import Any

NOTEBOOKS = sorted((Path(__file__).parent / "notebooks").glob("*.ipynb"))


def run_cells(notebook: dict[str, Any], folder: Path) -> list[str]:
    """Run the code cells of a notebook in a folder, and return what each prints on standard output."""
    names: dict[str, Any] = {"__name__": "__main__"}
    printed = []
    with contextlib.chdir(folder):
        for number, cell in enumerate(code_cells(notebook)):
            with contextlib.redirect_stdout(io.StringIO()) as output:
                exec(compile("".join(cell["source"]), f"cell {number}", "exec"), names)
            printed.append(output.getvalue())
    return printed


def code_cells(notebook: dict[str, Any]) -> list[dict[str, Any]]:
    """Return the cells that contain code."""
    return [cell for cell in notebook["cells"] if cell["cell_type"] == "code"]


def main() -> None:
    """Run all notebooks and write them again, with the outputs."""
    os.environ["COLUMNS"] = "100"
    for path in NOTEBOOKS:
        notebook = json.loads(path.read_text(encoding="utf-8"))
        with tempfile.TemporaryDirectory() as folder:
            printed = run_cells(notebook, Path(folder))
        for cell, text in zip(code_cells(notebook), printed, strict=True):
            output = {"output_type": "stream", "name": "stdout", "text": text.splitlines(keepends=True)}
            cell["outputs"] = [output] if text else []
        path.write_text(json.dumps(notebook, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
