"""Drawings of Vega-Lite specifications by vl-convert: SVG for pages; PDF, SVG and PNG files for papers."""

import json
import math
import re
from collections.abc import Sequence
from functools import cache
from importlib import import_module
from pathlib import Path
from typing import Any

from pogm._system.errors import UsageError, unknown_name_error
from pogm._system.files import digest, write_atomic
from pogm.report.chart import AXIS, LIGHT, MARGIN, Spec, specification, with_colours
from pogm.report.figure import Figure

VEGA_LITE = "6.4"
COLUMN, PAGE = 326, 682  # pixels: one column of a two-column page (3.4 inches), and both (7.1 inches)
ROW = 960  # pixels of the panels of an SVG file
POINTS = 0.75  # of a pixel: 96 pixels or 72 points are an inch
MOST_COLUMNS = 4
FORMATS = ("pdf", "png", "svg")


class MissingPackageError(UsageError):
    """Package that reports need and that is not installed."""


def load_package(module: str, package: str, purpose: str) -> Any:
    """Import a package that only reports need. Commands that write no report work without it.

    Raises:
        MissingPackageError: If the package is not installed.
    """
    try:
        return import_module(module)
    except ImportError as error:
        raise MissingPackageError(
            f"Expected the package {package}, which {purpose}; found that it is not installed. "
            f"Install it: pip install {package}"
        ) from error


def load_vl_convert() -> Any:
    """Import vl-convert, or raise an error that says how to install it."""
    return load_package("vl_convert", "vl-convert-python", "draws charts")


@cache
def javascript() -> str:
    """Return Vega, Vega-Lite and Vega-Embed as one script, which sets `window.vegaEmbed`."""
    return str(load_vl_convert().javascript_bundle(vl_version=VEGA_LITE))


def to_svg(spec: Spec) -> str:
    """Return a drawing as SVG, without elements that show nothing and with coordinates of a tenth of a pixel.

    Vega numbers the ids of clip paths in a process. Here they depend on the specification only, so that the same
    specification gives the same text and two drawings on a page do not share an id.
    """
    text = load_vl_convert().vegalite_to_svg(spec, vl_version=VEGA_LITE)
    text = re.sub(r'<path class="(back|fore)ground"[^>]*/>| opacity="1"(?=[ />])', "", text)
    text = re.sub(r' (?:d|transform|x\d?|y\d?|width|height)="[^"]*"', lambda found: _shorten(found[0]), text)
    prefix = f"clip-{digest(json.dumps(spec).encode())[:12]}"
    for number, name in enumerate(dict.fromkeys(re.findall(r'id="(clip\d+)"', text))):
        text = re.sub(rf'(id="|url\(#){name}\b', rf"\g<1>{prefix}-{number}", text)
    return text


def _shorten(coordinates: str) -> str:
    return re.sub(r"\d+\.\d{3,}", lambda found: f"{float(found[0]):.1f}".removesuffix(".0"), coordinates)


def write_figure(figure: Figure, folder: Path | str, formats: Sequence[str] = ("pdf", "svg")) -> list[Path]:
    """Write a figure for a paper and its numbers: ``<name>.pdf``, ``<name>.svg``, ``<name>.csv``.

    The figure is as wide as a column or as the page, text has 8 points, and the same figure gives the same bytes
    (in a PDF only the order of its fonts can differ).

    Args:
        figure: The figure.
        folder: Folder for the files.
        formats: Any of pdf, png and svg.
    """
    for name in formats:
        if name not in FORMATS:
            raise unknown_name_error("a format of figures", name, FORMATS)
    folder = Path(folder)
    contents = {name: _encode(figure, name) for name in formats}
    contents["csv"] = figure.csv().encode(errors="backslashreplace")
    folder.mkdir(parents=True, exist_ok=True)
    paths = [folder / f"{figure.name}.{name}" for name in contents]
    for path, content in zip(paths, contents.values(), strict=True):
        write_atomic(path, content)
    return paths


def write_svg(figure: Figure, path: Path | str) -> Path:
    """Write a figure as one SVG file with all panels in a row, and return its path."""
    path, columns = Path(path), max(1, len(figure.panels))
    path.parent.mkdir(parents=True, exist_ok=True)
    spec = specification(figure, width=ROW // columns - AXIS - MARGIN, columns=columns)
    write_atomic(path, to_svg(with_colours(spec, LIGHT)).encode())
    return path


def _encode(figure: Figure, name: str) -> bytes:
    text = to_svg(with_colours(paper_specification(figure), LIGHT))
    if name == "svg":
        return text.encode()
    if name == "png":
        return bytes(load_vl_convert().svg_to_png(text, ppi=300 * POINTS))
    # The first width and height are those of the drawing. For vl-convert a pixel is a point.
    text = re.sub(r'(width|height)="(\d+)"', lambda size: f'{size[1]}="{POINTS * int(size[2]):g}"', text, count=2)
    return bytes(load_vl_convert().svg_to_pdf(text))


def paper_specification(figure: Figure) -> Spec:
    """Return the specification for a paper: up to two panels fill a column, more of them the page."""
    count = max(1, len(figure.panels))
    total, columns = (COLUMN if count <= 2 else PAGE), math.ceil(count / math.ceil(count / MOST_COLUMNS))
    return specification(figure, width=total // columns - AXIS - MARGIN, columns=columns, letters=True)
