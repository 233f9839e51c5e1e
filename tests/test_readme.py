"""The README, CONTRIBUTING.md and the pages under docs/ match the package. tests/docs runs their code."""

import importlib.util
import re
from pathlib import Path

from digests import RELEASED

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text()
PAGES = (
    "README.md",
    "CONTRIBUTING.md",
    "CHANGELOG.md",
    *(f"docs/{path.name}" for path in (ROOT / "docs").glob("*.md")),
)


def test_readme_is_about_two_screens():
    assert len(README.split()) < 1000


def test_methods_page_is_up_to_date():
    """The page equals what its script writes; a method that is not released may be missing."""
    spec = importlib.util.spec_from_file_location("methods", ROOT / "benchmarks/methods.py")
    script = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(script)
    expected = script.methods_page(script.stored_measurements()).splitlines()
    found = (ROOT / "docs/methods.md").read_text().splitlines()
    unreleased = [line for line in expected if line not in found and _method(line) and _method(line) not in RELEASED]
    expected = [line for line in expected if line not in unreleased]
    assert found == expected, "Regenerate the page: python benchmarks/methods.py --page docs/methods.md"


def _method(line: str) -> str | None:
    match = re.match(r"\| `(\w+)` \|", line)
    return match[1] if match else None


def test_files_of_the_contributing_page_exist():
    page = (ROOT / "CONTRIBUTING.md").read_text()
    names = re.findall(r"`((?:cli|benchmark|core|data|engine|algorithms|modifiers|models|_system)/[\w/]+\.py)`", page)
    assert len(names) > 40
    for name in names:
        assert (ROOT / "src/pogm" / name).exists(), name


def test_links_lead_to_existing_files():
    for page in PAGES:
        text = (ROOT / page).read_text()
        for target in re.findall(r"\]\(([^)#]+)\)", text):
            if not target.startswith("http"):
                assert ((ROOT / page).parent / target).exists(), f"{page}: {target}"


def test_pages_have_no_placeholders():
    for page in PAGES:
        text = (ROOT / page).read_text()
        assert not re.search(r"<!--(?! (records:|results of|end of results))", text), page
        assert "TODO" not in text, page


def test_code_of_the_trainers_page_is_tested():
    """Every block is a part of an example or of a test; only the indentation may differ."""
    files = [*ROOT.glob("examples/*_trainer.py"), ROOT / "tests/integrations/test_lightning.py"]
    tested = [" ".join(file.read_text().split()) for file in files]
    blocks = re.findall(r"```python\n(.*?)```", (ROOT / "docs/trainers.md").read_text(), re.DOTALL)
    assert len(blocks) == 4
    for block in blocks:
        assert any(" ".join(block.split()) in text for text in tested), block


def test_contributing_shows_vrex_as_it_is():
    (block,) = re.findall(r"```python\n(.*?)```", (ROOT / "CONTRIBUTING.md").read_text(), re.DOTALL)
    assert block == (ROOT / "src/pogm/algorithms/vrex.py").read_text()
