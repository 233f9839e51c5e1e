"""Tables as HTML, with every name escaped."""

from collections.abc import Iterable, Sequence

from pogm.benchmark.charts import escape
from pogm.benchmark.comparison import HEAD, Comparison
from pogm.benchmark.tables import Cell, Table


def table_html(table: Table) -> str:
    """A table of ours, with its selection above and its rule and footnotes beneath."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in table.columns)
    rows = []
    for i, (label, cells) in enumerate(zip(table.rows, table.cells, strict=True)):
        shown = "".join(_cell(table, cell, best=i in table.best(j)) for j, cell in enumerate(cells))
        rows.append(f'<tr><th scope="row">{escape(label)}</th>{shown}</tr>')
    notes = "".join(f"<br>{escape(note)}" for note in table.footnotes)
    return (
        f'<figure class="table"><h3>{escape(table.selection.title)}</h3><div class="scroll" tabindex="0">'
        f'<table><thead><tr><th scope="col">Algorithm</th>{head}</tr></thead>'
        f"<tbody>{''.join(rows)}</tbody></table></div>"
        f"<figcaption>{escape(table.selection.rule)}{notes}</figcaption></figure>"
    )


def _cell(table: Table, cell: Cell, *, best: bool) -> str:
    if cell.mean is None:
        return f'<td class="missing">X <small>{escape(cell.reason)}</small></td>'
    error = "" if cell.stderr is None else f"<small> ± {cell.stderr:.1f}</small>"
    mean = f"<b>{cell.mean:.1f}</b>" if best else f"{cell.mean:.1f}"
    marks = f"<small>{escape(table.marks(cell))}</small>" if table.marks(cell) else ""
    return f'<td title="n = {cell.n}">{mean}{error}{marks}</td>'


def comparison_html(comparison: Comparison) -> str:
    """Ours beside published numbers."""
    head = "".join(f'<th scope="col">{escape(name)}</th>' for name in HEAD)
    rows = []
    for pair in comparison.pairs:
        first, *rest = pair.shown()
        cells = "".join(f"<td>{escape(text)}</td>" for text in rest)
        rows.append(f'<tr><th scope="row">{escape(first)}</th>{cells}</tr>')
    notes = "<br>".join(map(escape, comparison.footnotes))
    return (
        f'<figure class="table"><h3>{escape(comparison.selection.title)}</h3><div class="scroll" tabindex="0">'
        f"<table><thead><tr>{head}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
        f"<figcaption>{notes}</figcaption></figure>"
    )


def details(summary: str, head: Sequence[str], rows: Sequence[Sequence[object]]) -> str:
    """A list that opens on request; nothing where it is empty."""
    return f"<details><summary>{escape(summary)}</summary>{grid(head, rows)}</details>" if rows else ""


def grid(head: Sequence[str], rows: Iterable[Sequence[object]]) -> str:
    """Rows of anything, under a head."""
    columns = "".join(f'<th scope="col">{escape(name)}</th>' for name in head)
    body = "".join(f"<tr>{''.join(f'<td>{lines(value)}</td>' for value in row)}</tr>" for row in rows)
    return (
        f'<div class="scroll" tabindex="0"><table class="list"><thead><tr>{columns}</tr></thead>'
        f"<tbody>{body}</tbody></table></div>"
    )


def lines(value: object) -> str:
    """Text that keeps its line breaks."""
    return "<br>".join(map(escape, str(value).splitlines()))
