"""Measurements of several runs as a table: one column per algorithm, mean ± standard error over seeds."""

import csv
import io
import math
from collections.abc import Iterator, Sequence
from itertools import combinations, permutations
from typing import Any, NamedTuple

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
from pogm.benchmark.results.record_file import finite
from pogm.benchmark.results.records import Run
from pogm.benchmark.results.table import NUMBERS, Column, Row, Table, estimate


class Measurement(NamedTuple):
    """Title and meaning of a measurement. docs/theory.md lists the same names with their units."""

    title: str
    meaning: str


MEASUREMENTS = {
    "cosine": Measurement("cos(h_i, h)", "cosine of the step h and the trajectory h_i of domain i, mean over domains"),
    "difference": Measurement(
        "|θ_i − θ+|²", "squared distance of the model after the step from the copy of domain i, mean over domains"
    ),
    "layer_difference": Measurement(
        "sum |θ_i − θ+|", "the same as in the authors' code: distances, summed over weight tensors"
    ),
    "invariant": Measurement(
        "invariant cosine",
        "cosine of the step and the displacement over the last τ rounds; near 1 if it fluctuates little",
    ),
    "magnitude": Measurement("|h|²", "squared length of the step"),
    "agreement": Measurement("cos(h_i, h_j)", "cosine of the trajectories of two domains, mean over pairs"),
    "correlation": Measurement(
        "correlation", "Pearson correlation over rounds of cos(h_i, h) and cos(h_j, h), mean over pairs"
    ),
    "gap": Measurement("gap", "|cos(h_i, h) − cos(h_j, h)|, mean over rounds and pairs"),
    "conflicts": Measurement("conflicts", "share of rounds in which h_i·h_j < 0 for some two training domains"),
    "opposed": Measurement("step against a domain", "share of rounds in which h_i·h < 0 for some training domain i"),
    "gip": Measurement("sum h_i·h_j", "gradient inner product (GIP), summed over ordered pairs i ≠ j"),
    "alignment_variance": Measurement("Var(h_i·h)", "variance over training domains of h_i·h (Theorem 2)"),
    "alignment_variance_relative": Measurement(
        "Var(h_i·h), relative",
        "the same divided by |h|²·mean |h_i|²: from 0 (all domains equally aligned) to 1, comparable between runs",
    ),
    "worst": Measurement(
        "p*", "smallest h_i·d over domains for the best direction d (radius 0.5), relative to mean |h_i|²"
    ),
    "hull": Measurement(
        "outside the hull",
        "distance of the held-out domain's trajectory h_T from the convex hull of all h_i, relative to |h_T|",
    ),
    "hull_cosine": Measurement("cos to the hull", "cosine of h_T and the nearest point of that hull"),
    "divergence": Measurement(
        "KL(p_i ‖ p_j)", "KL divergence of the predictions of two domains' copies of the model, mean over pairs"
    ),
    "seconds_per_step": Measurement("s per minibatch", "seconds, with all measurements"),
}


def measure_table(found: Sequence[tuple[Run, Measured]], title: str, notes: Sequence[str] = ()) -> Table:
    """Return measurements against algorithms, with the meaning of each and a conclusion in words.

    Args:
        found: Runs with their measurements. They differ in algorithm and seed only.
        title: Title of the table.
        notes: Further footnotes.
    """
    by_label: dict[str, list[dict[str, float]]] = {}
    for run, m in found:
        seconds = mean(finite(record.get("seconds_per_step")) for record in run.records[1:])  # the first is warm-up
        by_label.setdefault(run.label, []).append(summary(m) | {"seconds_per_step": seconds})
    names = [name for name in MEASUREMENTS if any(name in numbers for seeds in by_label.values() for numbers in seeds)]
    rows = [
        Row(
            tuple(estimate(numbers.get(name, math.nan) for numbers in seeds) for seeds in by_label.values()),
            name,
            *MEASUREMENTS[name],
        )
        for name in names
    ]
    counts = {len(seeds) for seeds in by_label.values()}
    errors = f"± is the standard error over {'–'.join(map(str, sorted(counts)))} seeds." if max(counts) > 1 else ""
    return Table(
        title=title,
        columns=tuple(map(_column, by_label)),
        rows=tuple(rows),
        footnotes=tuple(filter(None, (errors, *notes))),
        row_key="measurement",
        csv_keys=("algorithm", "measurement"),
        conclusion=tuple(conclusion({label: [m for run, m in found if run.label == label] for label in by_label})),
        json_names={"rows": "cells", "footnotes": "notes"},
    )


def _column(label: str) -> Column:
    return Column(
        label,
        digits=".3g",
        error_digits=".1g",
        csv_digits=".6g",
        missing="–",
        per_trial=True,
        fields=NUMBERS,
        ids={"algorithm": label},
    )


def rounds_csv(found: Sequence[tuple[Run, Measured]]) -> str:
    """Return CSV with one line per run and measured round; what a run does not have is empty."""
    lines = [line for run, m in found for line in _round_lines(run, m)]
    columns = list(dict.fromkeys(name for line in lines for name in line))
    out = io.StringIO()
    writer = csv.DictWriter(out, columns, lineterminator="\n")
    writer.writeheader()
    writer.writerows({name: _plain(value) for name, value in line.items()} for line in lines)
    return out.getvalue()


def _round_lines(run: Run, m: Measured) -> Iterator[dict[str, Any]]:
    cosines, smallest, positions = agreements(m), worst(m), hull(m)
    products, aligned = gip(m), alignments(m)
    variance, relative = alignment_variances(m), relative_alignment_variances(m)
    sources, targets = list(enumerate(m.sources)), list(enumerate(m.targets))
    for r, number in enumerate(m.round):
        G = m.gramian[r]
        yield {
            "dataset": run.dataset,
            "algorithm": run.label,
            "held_out": run.held_out,
            "seed": run.trial_seed,
            "round": number,
            **{f"cosine {name}": m.cosine[r][i] for i, name in sources},
            **{f"difference {name}": m.difference[r][i] for i, name in sources},
            **{f"layer_difference {name}": m.layer_difference[r][i] for i, name in sources},
            "invariant": m.invariant[r],
            "magnitude": m.magnitude[r],
            **{f"agreement {a} {b}": _cosine(G, i, j) for (i, a), (j, b) in combinations(sources, 2)},
            "agreement": cosines[r],
            "gip": products[r],
            **{f"alignment {name}": aligned[r][i] for i, name in sources},
            "alignment_variance": variance[r],
            "alignment_variance_relative": relative[r],
            "worst": smallest[r],
            **{f"hull {name}": positions[r][i].distance for i, name in targets},
            **{f"hull_cosine {name}": positions[r][i].cosine for i, name in targets},
            **_divergences(m, r),
        }


def _cosine(G: list[list[float]], i: int, j: int) -> float:
    norms = math.sqrt(G[i][i]) * math.sqrt(G[j][j])
    return G[i][j] / norms if norms else math.nan


def _divergences(m: Measured, r: int) -> dict[str, float]:
    if m.divergence is None:
        return {}
    matrix, pairs = m.divergence[r], permutations(enumerate(m.sources), 2)
    return {f"divergence {a} {b}": matrix[i][j] for (i, a), (j, b) in pairs}


def _plain(value: Any) -> Any:
    """Write a number with six digits; NaN is empty."""
    if not isinstance(value, float):
        return value
    return "" if math.isnan(value) else f"{value:.6g}"
