"""A page: a title, facts, and sections of tables and figures, in one HTML file that needs nothing else."""

from base64 import b64encode
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from functools import cache
from hashlib import sha256
from importlib import resources
from pathlib import Path

from pogm import __version__
from pogm._system.files import write_atomic
from pogm.report.escaping import data_block, escape, slug
from pogm.report.markup import Exhibit, exhibit_html
from pogm.report.style import STYLE, colour_style

SCRIPTS = ("elements.js", "tables.js", "panels.js", "figures.js", "page.js")  # in this order
WIDE = 60  # letters, from where on a fact has a line of its own
SECONDS = 3  # between two looks of a live page


@dataclass(frozen=True)
class Section:
    """A part of a page, to which the navigation leads."""

    title: str
    exhibits: tuple[Exhibit, ...] = ()
    text: str = ""  # paragraphs, with an empty line between them
    command: str | None = None  # that makes its exhibits; None: the page's


def write_page(
    path: Path,
    title: str,
    sections: Sequence[Section],
    *,
    command: str | None = None,
    facts: Mapping[str, str] = {},
) -> Path:
    """Write the page and return its path."""
    path = Path(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomic(path, render(title, sections, command=command, facts=facts).encode())
    return path


def render(
    title: str,
    sections: Sequence[Section],
    *,
    command: str | None = None,
    facts: Mapping[str, str] = {},
    live: bool = False,
) -> str:
    """The page as text. A live one, which a server makes anew whenever asked, asks again every few seconds."""
    style = _file("report.css") + STYLE + colour_style()
    anchors = _anchors(sections)
    shown = "\n".join(_section(section, anchor, command) for section, anchor in zip(sections, anchors, strict=True))
    return f"""<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<meta name="color-scheme" content="light dark">
<meta http-equiv="Content-Security-Policy" content="{policy(live=live)}">
<title>{escape(title)}</title>
<style>
{style}</style>
</head>
<body{f' data-live="{SECONDS}"' if live else ""}>
<main>
{_header(title, command, facts)}
{_navigation(sections, anchors)}
{shown}
</main>
<div hidden id="picture-style">{data_block(STYLE + colour_style(standalone=True))}</div>
<script>{_script()}</script>
</body>
</html>
"""


def policy(*, live: bool = False) -> str:
    """Return the content security policy: the page may run its own script; a live page may also ask its server."""
    digest = b64encode(sha256(_script().encode()).digest()).decode()
    allowed = ["default-src 'none'", "style-src 'unsafe-inline'", f"script-src 'sha256-{digest}'"]
    return "; ".join([*allowed, *["connect-src 'self'"] * live])


def _script() -> str:
    return "\n".join(map(_file, SCRIPTS))


@cache
def _file(name: str) -> str:
    return resources.files("pogm.report").joinpath(name).read_text(encoding="utf-8")


def _header(title: str, command: str | None, facts: Mapping[str, str]) -> str:
    known = "".join(_fact(name, fact) for name, fact in facts.items() if fact)
    made = f"Made {datetime.now(UTC):%Y-%m-%d %H:%M} UTC by pogm {__version__}"
    by = f"<pre><code>{escape(command)}</code></pre>" if command else ""
    return f'<header><h1>{escape(title)}</h1><p class="muted">{made}</p>{by}<dl>{known}</dl></header>'


def _fact(name: str, fact: str) -> str:
    return f"<div{' class=wide' * (len(fact) > WIDE)}><dt>{escape(name)}</dt><dd>{escape(fact)}</dd></div>"


def _navigation(sections: Sequence[Section], anchors: Sequence[str]) -> str:
    if len(sections) < 2:
        return ""
    links = (
        f'<li><a href="#{anchor}">{escape(section.title.partition(": ")[0])}</a></li>'  # of Table 1: Results, Table 1
        for section, anchor in zip(sections, anchors, strict=True)
    )
    return f'<nav aria-label="Sections"><ul>{"".join(links)}</ul></nav>'


def _section(section: Section, anchor: str, command: str | None) -> str:
    paragraphs = [f"<p>{escape(' '.join(text.split()))}</p>" for text in section.text.split("\n\n") if text.strip()]
    exhibits = [
        exhibit_html(exhibit, f"{anchor}-{number}", section.title, section.command or command)
        for number, exhibit in enumerate(section.exhibits, start=1)
    ]
    return "\n".join([f'<section id="{anchor}"><h2>{escape(section.title)}</h2>', *paragraphs, *exhibits, "</section>"])


def _anchors(sections: Sequence[Section]) -> list[str]:
    """An address for each section, no two the same."""
    found: list[str] = []
    for section in sections:
        name = slug(section.title)
        taken = sum(anchor == name or anchor.startswith(f"{name}--") for anchor in found)
        found.append(f"{name}--{taken + 1}" if taken else name)
    return found
