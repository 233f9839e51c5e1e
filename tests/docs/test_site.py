"""The documentation is built without warnings, works without a network, and has no broken links."""

import sys
from html.parser import HTMLParser
from pathlib import Path
from urllib.parse import unquote, urlsplit

from processes import CONTEXT

import pogm
from pogm import pareto
from pogm.algorithms import all_algorithms
from pogm.cli import VERBS, parser
from pogm.core.hyperparameters import fields
from pogm.data.datasets import all_datasets
from pogm.modifiers import all_modifiers

DOCS = Path(__file__).parents[2] / "docs"
SEARCHED = ("genindex.html", "search.html")  # pages of Sphinx that every page links to by JavaScript or in its head


class Page(HTMLParser):
    """Links, anchors, loaded files and text of an HTML page."""

    def __init__(self, path: Path):
        super().__init__()
        self.links: list[str] = []
        self.loaded: list[str] = []
        self.ids: set[str] = set()
        self.words: list[str] = []
        self.feed(path.read_text(encoding="utf-8"))

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        found = dict(attrs)
        self.ids.update(value for name in ("id", "name") if (value := found.get(name)))
        if tag == "a" and found.get("href"):
            self.links.append(found["href"] or "")
        elif found.get("src") or (tag == "link" and found.get("rel") in ("stylesheet", "icon")):
            self.loaded.append(found.get("src") or found.get("href") or "")

    def handle_data(self, data: str) -> None:
        self.words.append(data)

    @property
    def text(self) -> str:
        return "".join(self.words)


def build(out: Path, log: Path) -> None:
    """Build the site in this process; it replaces modules by mocks, so it must not be the process of the tests."""
    from sphinx.cmd.build import build_main

    with open(log, "w", encoding="utf-8") as sys.stderr:
        sys.stdout = sys.stderr
        code = build_main(["-W", "--keep-going", "-q", "-d", str(out.parent / "doctrees"), str(DOCS), str(out)])
    sys.exit(code)


def test_site_is_complete_and_its_links_are_valid(tmp_path):
    out, log = tmp_path / "site", tmp_path / "log"
    process = CONTEXT.Process(target=build, args=(out, log))
    process.start()
    process.join()
    assert process.exitcode == 0, log.read_text()

    pages = {path.relative_to(out).as_posix(): Page(path) for path in out.rglob("*.html")}
    assert not [(name, source) for name, page in pages.items() for source in page.loaded if urlsplit(source).netloc]
    assert not list(broken_links(pages, out))
    assert set(pages) - reachable(pages) - set(SEARCHED) == set()
    check_reference({name.removeprefix("reference/"): page.text for name, page in pages.items()})


def broken_links(pages: dict[str, Page], out: Path):
    """Yield page and link for every internal link without a file or an anchor."""
    for name, page in pages.items():
        for link in (*page.links, *page.loaded):
            if urlsplit(link).scheme or urlsplit(link).netloc:
                continue
            target = resolve(name, link)
            anchor = unquote(urlsplit(link).fragment)
            if not (out / target).is_file() or (anchor and target in pages and anchor not in pages[target].ids):
                yield name, link


def resolve(page: str, link: str) -> str:
    """Return the path of the file that a link of a page leads to."""
    path = unquote(urlsplit(link).path)
    parts = (Path(page).parent / path).parts if path else Path(page).parts
    found: list[str] = []
    for part in parts:
        if part == "..":
            found.pop()
        else:
            found.append(part)
    return "/".join(found)


def reachable(pages: dict[str, Page]) -> set[str]:
    """Return the pages to which links lead from the index."""
    found, waiting = {"index.html"}, ["index.html"]
    while waiting:
        name = waiting.pop()
        links = [resolve(name, link) for link in pages[name].links if not urlsplit(link).scheme]
        new = {link for link in links if link in pages} - found
        found |= new
        waiting += new
    return found


def check_reference(texts: dict[str, str]) -> None:
    """Check that the reference has every public name, method, hyperparameter, dataset, command and option."""
    for page, registry in (("algorithms.html", all_algorithms()), ("modifiers.html", all_modifiers())):
        for name, kind in registry.items():
            assert f"pogm.{name}" in texts[page], name
            section = texts[page].split(f"class pogm.{name}", 1)[1].split("class pogm.", 1)[0]
            assert not [field.name for field in fields(kind) if field.name not in section], name
    assert not [name for name in all_datasets() if name not in texts["datasets.html"]]
    methods = {*all_algorithms(), *all_modifiers(), "pareto"}
    assert not [name for name in pogm.__all__ if name not in methods and f"pogm.{name}" not in texts["api.html"]]
    public = [name for name, value in vars(pareto).items() if name[0].islower() and callable(value)]
    assert not [name for name in public if f"pogm.pareto.{name}" not in texts["api.html"]]
    for verb in (verb for verbs in VERBS.values() for verb in verbs):
        (actions,) = [list(a.choices.values()) for a in parser(verb)._actions if a.choices and a.dest != "version"]
        options = {flag for command in actions for action in command._actions for flag in action.option_strings}
        assert f"pogm {verb}" in texts["commands.html"]
        assert not [flag for flag in options - {"-h", "--help"} if flag not in texts["commands.html"]], verb
