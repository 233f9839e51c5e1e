"""Pages: a title, facts, and sections of tables and figures, in one HTML file that loads nothing else."""

import re
from base64 import b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path
from typing import Any, NamedTuple

from pogm import __version__
from pogm._system.files import write_atomic
from pogm._system.terminal import printable
from pogm.benchmark.results.table import TEST_IMAGES, Estimate, Table, Tabular
from pogm.report.chart import DARK, LIGHT, colour_of, dashes_of, specification, static_panels
from pogm.report.draw import javascript, load_package, to_svg
from pogm.report.figure import Figure

NUMBER = re.compile(r"[+−-]?\d")
ABSOLUTE = re.compile(r"""(?:^|(?<=[\s'"=(\[,:]))/(?:[^\s/'"]+/)*([^\s/'",;)\]]+)/?""")  # path of a file or folder
PURPOSE = "writes HTML pages"
SECONDS = 3  # between two requests of a live page


class Part(NamedTuple):
    """A template of `templates` and the values that it shows."""

    template: str
    values: Mapping[str, Any]


@dataclass(frozen=True)
class Fold:
    """Exhibits behind a title; a click opens them. A fold is open on paper."""

    title: str
    exhibits: "tuple[Tabular | Figure | Part, ...]"
    open_if_wide: bool = False  # open on a wide screen, closed on a phone


Exhibit = Tabular | Figure | Part | Fold


@dataclass(frozen=True)
class Section:
    """A section of a page, with an entry in the navigation."""

    title: str
    exhibits: tuple[Exhibit, ...] = ()
    text: str = ""  # paragraphs with an empty line between them
    command: str | None = None  # command line that makes the exhibits; None: that of the page


def paragraph(text: str) -> Part:
    """Return a paragraph in a muted colour."""
    return Part("paragraph", {"text": text})


def sentence(text: str) -> Part:
    """Return the main finding, in large letters. A number stays in one line with its error, its unit and "n ="."""
    for short in (" ± ", " %", "n = "):
        text = text.replace(short, short.replace(" ", "\u00a0"))
    return Part("sentence", {"text": text})


def listing(head: Sequence[str], rows: Iterable[Sequence[object]], summary: str = "") -> Part:
    """Return a plain list with a head. With a summary, the list is closed and opens on a click."""
    return Part("list", {"head": head, "rows": list(rows), "summary": summary})


def image(content: bytes, text: str) -> Part:
    """Return a PNG image that is part of the page, with a caption."""
    return Part("image", {"content": b64encode(content).decode(), "text": text})


def write_page(path: Path, page: str) -> Path:
    """Write a page of `render` into a file, and return its path."""
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, page.encode())
    return path


def render(
    title: str,
    sections: Sequence[Section],
    *,
    command: str | None = None,
    facts: Mapping[str, str] = {},
    lead: Sequence[Exhibit] = (),
    provenance: Mapping[str, str] = {},
    live: bool = False,
) -> str:
    """Return a page as HTML, with all text escaped.

    Args:
        title: Title of the page.
        sections: Sections of the page.
        command: Command line that makes the page.
        facts: Short texts at the top of the page, by their names. Empty texts are left out.
        lead: Exhibits under the title, before everything else.
        provenance: Versions, devices and the like, by their names, closed at the end of the page.
        live: Ask the server for a new version every few seconds. The browser draws the charts of a live page; other
            pages also contain them as SVG, for browsers without JavaScript and for printing.

    Raises:
        MissingPackageError: If jinja2 or vl-convert-python is not installed.
    """
    command = None if command is None else without_folders(command)
    anchors = _anchors(sections)
    first = Section("", (*lead,))
    charts = live or any(_has_figure(section.exhibits) for section in (first, *sections))
    values = {
        "title": title,
        "command": command,
        "facts": {name: fact for name, fact in facts.items() if fact},
        "lead": [_render_exhibit(each, f"main-finding-{i}", first, live) for i, each in enumerate(lead, start=1)],
        "provenance": {name: without_folders(fact) for name, fact in provenance.items() if fact},
        "made": f"{datetime.now(UTC):%Y-%m-%d %H:%M} UTC by pogm {__version__}",
        "sections": [
            {
                "anchor": anchor,
                "title": section.title,
                "label": section.title.partition(": ")[0],  # "Table 1" of "Table 1: Results"
                "paragraphs": [" ".join(text.split()) for text in section.text.split("\n\n") if text.strip()],
                "exhibits": [
                    _render_exhibit(exhibit, f"{anchor}-{number}", section, live)
                    for number, exhibit in enumerate(section.exhibits, start=1)
                ],
            }
            for section, anchor in zip(sections, anchors, strict=True)
        ],
        "policy": policy(charts, live=live),
        "style": _file("report.css"),
        "script": script(charts),
        "schemes": {"light": LIGHT, "dark": DARK},
        "seconds": SECONDS if live else None,
    }
    return str(_template("page").render(values)) + "\n"


def render_table(table: Table, anchor: str, under: Sequence[str] = (), command: str | None = None) -> str:
    """Return a table as HTML, with its selection rule, its notes and its CSV.

    Args:
        table: The table.
        anchor: Address within the page.
        under: Titles of the section and of the fold. They are not repeated as the title of the table.
        command: Command line that makes the table.
    """
    selection = table.selection
    titles = [title for title in (table.title, selection.title if selection else "") if title and title not in under]
    first, *others = table.shown
    if table.row_key:  # rows have labels; otherwise the first cell is the head of a row
        heads, labels, others = [table.row_key.capitalize()], [row.label for row in table.rows], [first, *others]
    else:
        heads, labels = [table.columns[first].heading], [table.columns[first].text(r.cells[first]) for r in table.rows]
    columns = [_cells(table, j) for j in others]
    values = {
        "anchor": anchor,
        "titles": titles,
        "heads": [
            *((head, False) for head in heads),
            *((table.columns[j].heading, _is_words(table, j)) for j in others),
        ],
        "rows": list(zip(labels, zip(*columns, strict=True) if columns else [()] * len(labels), strict=True)),
        "test_images": table.test_images,
        "test_images_label": TEST_IMAGES,
        "notes": [*([selection.rule] if selection else []), *table.notes, *table.conclusion],
        "command": command,
        "data": {"name": slug(f"{table.title} {selection.name}" if selection else table.title), "csv": table.csv()},
    }
    return str(_template("table").render(values))


def _is_words(table: Table, j: int) -> bool:
    """Return True if a column has words, which are aligned to the left."""
    return table.columns[j].kind == "text" and not any(NUMBER.match(str(row.cells[j])) for row in table.rows)


def _cells(table: Table, j: int) -> list[dict[str, object]]:
    """Return the cells of a column as the template shows them."""
    column, best, is_words = table.columns[j], table.best(j), _is_words(table, j)
    cells: list[dict[str, object]] = []
    for i, row in enumerate(table.rows):
        cell = row.cells[j]
        if not isinstance(cell, Estimate):
            cells.append({"text": column.text(cell), "is_words": is_words})
        elif cell.mean is None:
            cells.append({"missing": column.missing, "reason": cell.reason})
        else:
            small = [text for text in (column.error_text(cell), table.marks(j, cell)) if text]
            n = cell.n if "n" in column.fields else None
            cells.append({"mean": column.mean_text(cell.mean), "is_best": i in best, "small": small, "n": n})
    return cells


def _render_figure(figure: Figure, anchor: str, command: str | None, live: bool, under: str = "") -> str:
    spec = specification(figure)
    values = {
        "anchor": anchor,
        "titles": [] if figure.title == under else [figure.title],
        "legend": [
            (name, type(mark).__name__.lower(), colour_of(mark), dashes_of(mark))
            for name, mark in figure.legend().items()
        ],
        "panels": [(panel["description"], "" if live else _markup(to_svg(panel))) for panel in static_panels(spec)],
        "explanation": figure.explanation,
        "notes": figure.notes,
        "command": command,
        "data": {"name": figure.name, "csv": figure.csv(), "spec": spec},
    }
    return str(_template("figure").render(values))


def _has_figure(exhibits: Iterable[Exhibit]) -> bool:
    return any(
        isinstance(exhibit, Figure) or (isinstance(exhibit, Fold) and _has_figure(exhibit.exhibits))
        for exhibit in exhibits
    )


def without_folders(text: str) -> str:
    """Replace absolute paths by their last part: a page that is sent to others does not name folders of a machine."""
    return ABSOLUTE.sub(r"…/\1", text)


def _render_exhibit(exhibit: Exhibit, anchor: str, section: Section, live: bool, under: str = "") -> Any:
    """Return an exhibit as HTML. It has the command of its section; that of the page is at the end of the page."""
    if isinstance(exhibit, Tabular):
        text = render_table(exhibit.table(), anchor, (section.title, under), section.command)
    elif isinstance(exhibit, Figure):
        text = _render_figure(exhibit, anchor, section.command, live, under)
    elif isinstance(exhibit, Fold):
        inner = [
            _render_exhibit(each, f"{anchor}-{number}", section, live, exhibit.title)
            for number, each in enumerate(exhibit.exhibits, start=1)
        ]
        text = _template("fold").render(title=exhibit.title, exhibits=inner, open_if_wide=exhibit.open_if_wide)
    else:
        text = _template(exhibit.template).render(exhibit.values)
    return _markup(text)


def policy(charts: bool = True, *, live: bool = False) -> str:
    """Return the content security policy: the page runs only its own script; a live page may ask its server.

    Vega evaluates its expressions with an interpreter (`ast` in report.js), so the script needs no 'unsafe-eval'.
    """
    digest = b64encode(sha256(script(charts).encode()).digest()).decode()
    allowed = ["default-src 'none'", "img-src data:", "style-src 'unsafe-inline'", f"script-src 'sha256-{digest}'"]
    return "; ".join([*allowed, *["connect-src 'self'"] * live])


@cache
def script(charts: bool = True) -> str:
    """Return the script of a page, which sorts tables and sets up charts. A page with charts has Vega-Embed, too."""
    return f"{javascript()}\n{_file('report.js')}" if charts else _file("report.js")


def slug(text: str) -> str:
    """Return a name as an address within a page or as the name of a file: lower-case letters, digits and hyphens."""
    return "-".join(re.findall("[a-z0-9]+", text.lower()))[:60] or "untitled"


def _anchors(sections: Sequence[Section]) -> list[str]:
    """Return a different address for each section."""
    found: list[str] = []
    for section in sections:
        name = slug(section.title)
        count = sum(anchor == name or anchor.startswith(f"{name}--") for anchor in found)
        found.append(f"{name}--{count + 1}" if count else name)
    return found


def _file(name: str) -> str:
    return resources.files("pogm.report").joinpath(name).read_text(encoding="utf-8")


def _template(name: str) -> Any:
    return _environment().get_template(f"{name}.html.j2")


@cache
def _environment() -> Any:
    """Return the environment of the templates. All values are escaped, and control characters are made visible."""
    jinja2, markup = load_package("jinja2", "jinja2", PURPOSE), type(_markup(""))
    environment = jinja2.Environment(
        loader=jinja2.FunctionLoader(lambda name: _file(f"templates/{name}")),
        autoescape=True,
        undefined=jinja2.StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
        finalize=lambda value: value if isinstance(value, markup) else printable(value),
    )
    environment.policies["json.dumps_kwargs"] = {"separators": (",", ":"), "allow_nan": False}
    environment.filters["cell"] = _render_cell
    environment.filters["lines"] = lambda text: [*map(printable, str(text).splitlines())]
    return environment


def _render_cell(value: object) -> Any:
    """Return the text of a cell as HTML. A list can have 100,000 cells, so this is a function and not a template."""
    lines = [_escaper()(printable(line)) for line in str(value).splitlines()]
    return lines[0] if len(lines) == 1 else _markup("<br>").join(lines)


@cache
def _escaper() -> Any:
    return load_package("markupsafe", "jinja2", PURPOSE).escape


def _markup(text: str) -> Any:
    """Mark text as HTML or SVG whose names are escaped already, by a template or by Vega."""
    return load_package("markupsafe", "jinja2", PURPOSE).Markup(text)
