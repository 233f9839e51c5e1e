"""Measurements of several runs as a table: one column per algorithm, mean ± standard error over seeds."""

import csv
import io
import json
import math
import textwrap
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import combinations, permutations
from typing import Any

from pogm.benchmark.results.conclusion import conclusion
from pogm.benchmark.results.measurements import (
    Measured,
    agreements,
    alignment_variances,
    alignments,
    gip,
    hull,
    mean,
    relative_alignment_variances,
    summary,
    worst,
)
from pogm.benchmark.results.records import Run, finite, printable
from pogm.benchmark.results.statistics import mean_of

TITLES = {  # of the rows, with what each says
    "angle": ("cos(h_i, h)", "the step's angle with what domain i alone would do, mean over domains"),
    "difference": ("|θ_i − θ+|²", "how far the model is from the copy of domain i after the step, likewise"),
    "layer_difference": ("sum |θ_i − θ+|", "the same as the authors' code has it: lengths, summed over weight tensors"),
    "invariant": (
        "invariant angle",
        "the step's angle with the path of the last τ rounds: large if it fluctuates little",
    ),
    "magnitude": ("|h|²", "how long the step is"),
    "agreement": ("cos(h_i, h_j)", "the angle between two domains, mean over pairs"),
    "correlation": ("correlation", "Pearson's, over rounds, of cos(h_i, h) and cos(h_j, h), mean over pairs"),
    "gap": ("gap", "|cos(h_i, h) − cos(h_j, h)|, mean over rounds and pairs"),
    "conflicts": ("conflicts", "the share of rounds in which two domains point against each other"),
    "opposed": ("step against a domain", "the share of rounds in which h_i·h < 0 for some training domain i"),
    "gip": ("sum h_i·h_j", "the raw gradient inner product (GIP), summed over ordered pairs i ≠ j"),
    "alignment_variance": ("Var(h_i·h)", "the variance over training domains of h_i·h (Theorem 2), raw"),
    "alignment_variance_relative": (
        "Var(h_i·h), relative",
        "the same divided by |h|²·mean |h_i|²: from 0 (all domains equally aligned) to 1, comparable between runs",
    ),
    "worst": ("p*", "the worst-off domain's gain along the best direction (radius 0.5), relative to mean |h_i|²"),
    "hull": ("outside the hull", "distance of the held-out domain's h_T from the hull of all h_i, relative to |h_T|"),
    "hull_cosine": ("cos to the hull", "the angle of h_T with the nearest point of that hull"),
    "divergence": ("KL(p_i ‖ p_j)", "how far the domains' copies differ in what they predict, mean over pairs"),
    "seconds_per_step": ("s per minibatch", "with all this measuring"),
}


@dataclass(frozen=True)
class MeasureCell:
    """A mean with its standard error over n seeds; NaN where nothing is defined."""

    mean: float
    stderr: float
    n: int

    def __str__(self) -> str:
        if math.isnan(self.mean):
            return "–"
        return f"{self.mean:.3g}" if self.n < 2 else f"{self.mean:.3g} ± {self.stderr:.1g}"


@dataclass(frozen=True)
class MeasureTable:
    """Measurements against algorithms."""

    title: str
    columns: tuple[str, ...]  # algorithms
    cells: dict[str, tuple[MeasureCell, ...]]  # by measurement
    notes: tuple[str, ...]
    conclusion: tuple[str, ...] = ()  # sentences; the last one is the recommendation

    def text(self) -> str:
        """Aligned, for a terminal, with what each row means; the conclusion comes last."""
        head = ["", *map(printable, self.columns)]
        body = [[TITLES[name][0], *map(str, cells)] for name, cells in self.cells.items()]
        widths = [max(len(row[place]) for row in (head, *body)) for place in range(len(head))]
        lines = [
            "  ".join([row[0].ljust(widths[0]), *(cell.rjust(w) for cell, w in zip(row[1:], widths[1:], strict=True))])
            for row in (head, *body)
        ]
        rule = "─" * max(map(len, lines))
        meanings = [f"{TITLES[name][0]}: {TITLES[name][1]}." for name in self.cells]
        notes = [textwrap.fill(note, 100, subsequent_indent="  ") for note in (*self.notes, *meanings)]
        if self.conclusion:
            sentences = (textwrap.fill(printable(text), 100, subsequent_indent="  ") for text in self.conclusion)
            notes += [rule, "Conclusion", *sentences]
        return "\n".join([printable(self.title), rule, lines[0], rule, *lines[1:], rule, *notes]) + "\n"

    def csv(self) -> str:
        """One line per cell."""
        rows = [
            [label, name, *(_plain(value) for value in (cell.mean, cell.stderr)), cell.n]
            for name, cells in self.cells.items()
            for label, cell in zip(self.columns, cells, strict=True)
        ]
        return _csv([["algorithm", "measurement", "mean", "stderr", "n"], *rows])

    def json(self) -> str:
        """The cells by measurement and algorithm; what is undefined is null."""
        cells = {
            name: {
                label: {"mean": _null(cell.mean), "stderr": _null(cell.stderr), "n": cell.n}
                for label, cell in zip(self.columns, row, strict=True)
            }
            for name, row in self.cells.items()
        }
        meanings = {name: TITLES[name][1] for name in self.cells}
        conclusion = " ".join(self.conclusion)
        return json.dumps(
            {"title": self.title, "cells": cells, "meanings": meanings, "notes": self.notes, "conclusion": conclusion},
            indent=1,
        )


def measure_table(found: Sequence[tuple[Run, Measured]], title: str, notes: Sequence[str] = ()) -> MeasureTable:
    """Of runs that differ in algorithm and seed alone."""
    by_label: dict[str, list[dict[str, float]]] = {}
    for run, m in found:
        seconds = mean(finite(record.get("seconds_per_step")) for record in run.records[1:])  # the first warms up
        by_label.setdefault(run.label, []).append(summary(m) | {"seconds_per_step": seconds})
    names = [name for name in TITLES if any(name in numbers for seeds in by_label.values() for numbers in seeds)]
    cells = {
        name: tuple(
            MeasureCell(*mean_of(numbers.get(name, math.nan) for numbers in seeds)) for seeds in by_label.values()
        )
        for name in names
    }
    counts = {len(seeds) for seeds in by_label.values()}
    spread = f"± is the standard error over {'–'.join(map(str, sorted(counts)))} seeds." if max(counts) > 1 else ""
    concluded = conclusion({label: [m for run, m in found if run.label == label] for label in by_label})
    return MeasureTable(title, tuple(by_label), cells, tuple(filter(None, (spread, *notes))), tuple(concluded))


def rounds_csv(found: Sequence[tuple[Run, Measured]]) -> str:
    """One line per run and measured round; a run without a column has nothing there."""
    rows = [row for run, m in found for row in _rows(run, m)]
    columns = list(dict.fromkeys(name for row in rows for name in row))
    return _csv([columns, *([_plain(row.get(name, "")) for name in columns] for row in rows)])


def _rows(run: Run, m: Measured) -> Iterator[dict[str, Any]]:
    agreed, least, places = agreements(m), worst(m), hull(m)
    products, aligned = gip(m), alignments(m)
    variance, relative = alignment_variances(m), relative_alignment_variances(m)
    sources, targets = list(enumerate(m.sources)), list(enumerate(m.targets))
    for place, number in enumerate(m.round):
        G = m.gramian[place]
        yield {
            "dataset": run.dataset,
            "algorithm": run.label,
            "held_out": run.held_out,
            "seed": run.trial_seed,
            "round": number,
            **{f"angle {name}": m.angle[place][i] for i, name in sources},
            **{f"difference {name}": m.difference[place][i] for i, name in sources},
            **{f"layer_difference {name}": m.layer_difference[place][i] for i, name in sources},
            "invariant": m.invariant[place],
            "magnitude": m.magnitude[place],
            **{f"cosine {a} {b}": _cosine(G, i, j) for (i, a), (j, b) in combinations(sources, 2)},
            "agreement": agreed[place],
            "gip": products[place],
            **{f"alignment {name}": aligned[place][i] for i, name in sources},
            "alignment_variance": variance[place],
            "alignment_variance_relative": relative[place],
            "worst": least[place],
            **{f"hull {name}": places[place][i].distance for i, name in targets},
            **{f"hull_cosine {name}": places[place][i].cosine for i, name in targets},
            **_divergences(m, place),
        }


def _cosine(G: list[list[float]], i: int, j: int) -> float:
    norms = math.sqrt(G[i][i]) * math.sqrt(G[j][j])
    return G[i][j] / norms if norms else math.nan


def _divergences(m: Measured, place: int) -> dict[str, float]:
    if m.divergence is None:
        return {}
    matrix, both = m.divergence[place], permutations(enumerate(m.sources), 2)
    return {f"divergence {a} {b}": matrix[i][j] for (i, a), (j, b) in both}


def _csv(rows: Sequence[Sequence[Any]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def _plain(value: Any) -> Any:
    """A number with the digits that matter; what is undefined is empty."""
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else f"{value:.6g}"


def _null(value: float) -> float | None:
    return None if math.isnan(value) else value
