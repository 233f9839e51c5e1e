"""Text of pages that comes from elsewhere: from files of the repository, and from the package.

The Markdown files of the repository link to each other by their paths, so that they also work in a code browser. This
extension

- replaces a line ``{repository-page} PATH`` by the text of a file outside of this folder, such as CHANGELOG.md,
- replaces a line ``{generate} NAME`` by text that a function makes from the package,
- points links to such a file to its page, and links to other files of the repository to a copy of the file,
- keeps a number and its error in one line of a table, and marks blocks without a language as text.
"""

import os
import re
from pathlib import Path

import method_reference
from command_reference import command_reference
from sphinx.application import Sphinx

DOCS = Path(__file__).parents[1]
ROOT = DOCS.parent
PAGES = {  # file of the repository: page that shows it
    "README.md": "index.md",
    "CHANGELOG.md": "changelog.md",
    "CONTRIBUTING.md": "contributing.md",
    "results/PROTOCOL.md": "measurements/protocol.md",
    "results/PLAN.md": "measurements/plan.md",
    "results/mnist/README.md": "measurements/evidence.md",
    "results/small/README.md": "measurements/evidence_small.md",
    "results/features/README.md": "measurements/evidence_features.md",
    "results/pacs/README.md": "measurements/evidence_pacs.md",
    "results/soups/README.md": "measurements/soups.md",
    "results/variants/README.md": "measurements/variants.md",
    "results/ablation/README.md": "measurements/ablation.md",
    "results/agreement/README.md": "measurements/agreement.md",
    "results/fewer_domains/README.md": "measurements/fewer_domains.md",
    "results/fewer_samples/README.md": "measurements/fewer_samples.md",
    "results/search/README.md": "measurements/search.md",
    "results/published/README.md": "measurements/published.md",
    "results/README.md": "measurements/results.md",
    "results/centre/README.md": "measurements/centre_records.md",
    "benchmarks/results/pipeline.md": "measurements/pipeline.md",
    "benchmarks/results/soak.md": "measurements/soak.md",
    "benchmarks/results/solver.md": "measurements/solver.md",
}
GENERATORS = {
    "commands": command_reference,
    "algorithms": method_reference.algorithm_reference,
    "modifiers": method_reference.modifier_reference,
    "datasets": method_reference.dataset_reference,
    "networks": method_reference.network_reference,
    "trackers": method_reference.tracker_reference,
    "metrics": method_reference.metric_reference,
}


def read_source(app: Sphinx, docname: str, source: list[str]) -> None:
    """Insert the text of other files and of the generators, and change the links of a page."""
    page = Path(app.env.doc2path(docname))
    if page.suffix != ".md":
        return
    file = page
    if found := re.fullmatch(r"\{repository-page\} (\S+)\s*", source[0]):
        file = (page.parent / found[1]).resolve()
        app.env.note_dependency(str(file), docname=docname)
        source[0] = file.read_text(encoding="utf-8")
    text = change_links(source[0], file, page)
    text = re.sub(r"^\{generate\} (\w+)$", lambda found: GENERATORS[found[1]](), text, flags=re.MULTILINE)
    source[0] = improve_layout(text)


def change_links(text: str, file: Path, page: Path) -> str:
    """Return the text of a file with links that are valid on a page."""

    def change(found: re.Match[str]) -> str:
        target = (file.parent / found[1]).resolve()
        name = os.path.relpath(target, ROOT).replace(os.sep, "/")
        target = DOCS / PAGES[name] if name in PAGES else target
        return f"]({os.path.relpath(target, page.parent).replace(os.sep, '/')}{found[2] or ''})"

    return re.sub(r"\]\((?!\w+:)([^)#\s]+)(#[^)\s]*)?\)", change, text)


def improve_layout(text: str) -> str:
    """Return the text without line breaks around ± in tables, and with a language for every code block."""
    row = re.compile(r"^\|.*", re.MULTILINE)
    text = row.sub(lambda found: re.sub(" ([±…]) ", "\N{NO-BREAK SPACE}\\1\N{NO-BREAK SPACE}", found[0]), text)
    block = re.compile(r"^```([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
    return block.sub(lambda found: f"```{found[1] or 'text'}\n{found[2]}```", text)


def setup(app: Sphinx) -> dict[str, bool]:
    """Register the event."""
    app.connect("source-read", read_source)
    return {"parallel_read_safe": True, "parallel_write_safe": True}
