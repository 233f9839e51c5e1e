"""Notebooks as pages: text, code and the stored outputs. Nothing is executed; a test runs the cells."""

import json

from docutils import nodes
from myst_parser.parsers.sphinx_ import MystParser
from sphinx.application import Sphinx


class NotebookParser(MystParser):
    """Parser of ``.ipynb`` files: each cell becomes Markdown."""

    supported = ("ipynb",)

    def parse(self, inputstring: str, document: nodes.document) -> None:
        """Parse the notebook as a Markdown page."""
        super().parse(to_markdown(inputstring), document)


def to_markdown(notebook: str) -> str:
    """Return the text of a notebook, its code, and the text and SVG outputs of each cell."""
    parts = []
    for cell in json.loads(notebook)["cells"]:
        source = "".join(cell["source"])
        if cell["cell_type"] == "markdown":
            parts.append(source)
            continue
        parts.append(f"```python\n{source}\n```")
        for output in cell["outputs"]:
            data = output.get("data", {})
            if "image/svg+xml" in data:
                parts.append(f"<div class='output'>{''.join(data['image/svg+xml'])}</div>")
            elif text := "".join(output.get("text", data.get("text/plain", ""))):
                parts.append(f":::{{code-block}} text\n:class: output\n\n{text.rstrip()}\n:::")
    return "\n\n".join(parts)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the parser."""
    app.add_source_suffix(".ipynb", "ipynb")
    app.add_source_parser(NotebookParser)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
