"""Quantities computed from the measurements of a run, compared with known values."""

import csv
import io
import json
import math
import shutil
from dataclasses import replace

import pytest
import torch
from support import trial

from pogm import ERM, POGM
from pogm.benchmark.results.measurement_table import measure_table, rounds_csv
from pogm.benchmark.results.measurements import (
    Hull,
    Measured,
    agreements,
    alignment_variances,
    alignments,
    conflicts,
    correlations,
    divergence,
    gaps,
    gip,
    hull,
    opposed,
    read_measurements,
    relative_alignment_variances,
    summary,
    worst,
)
from pogm.benchmark.results.record_file import RecordWarning
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.runner import run
from pogm.diagnostics import Probe
from pogm.pareto import gramian

NAN = math.nan


def made(trajectories, K, cosine=None, **more):
    """Return rounds with these trajectories [R][K + T][P]."""
    rounds = len(trajectories)
    ones = [[1.0] * K] * rounds
    values = {
        "sources": tuple("ABCD"[:K]),
        "targets": tuple("XYZ"[: len(trajectories[0]) - K]),
        "round": list(range(1, rounds + 1)),
        "cosine": ones if cosine is None else cosine,
        "difference": ones,
        "layer_difference": ones,
        "magnitude": [1.0] * rounds,
        "invariant": [NAN] * rounds,
        "gramian": [gramian(torch.tensor(h, dtype=torch.float64)).tolist() for h in trajectories],
    }
    return Measured(**values | more)


def with_cosines(*columns):
    return made(
        [[[1.0]] * len(columns)] * len(columns[0]), len(columns), cosine=[list(a) for a in zip(*columns, strict=True)]
    )


def test_correlations_are_pearson_correlations_over_rounds():
    m = with_cosines([0.0, 0.5, 1.0], [0.2, 0.3, 0.4], [1.0, 0.5, 0.0])
    assert correlations(m) == {(0, 1): pytest.approx(1), (0, 2): pytest.approx(-1), (1, 2): pytest.approx(-1)}
    m = with_cosines([0.0, 0.0, 1.0, 1.0], [0.0, 1.0, 0.0, 1.0])
    assert correlations(m) == {(0, 1): pytest.approx(0)}


def test_correlation_with_a_constant_is_undefined():
    (rho,) = correlations(with_cosines([0.1] * 6, [0.1, 0.2, 0.3, 0.4, 0.5, 0.6])).values()
    assert math.isnan(rho)
    (rho,) = correlations(with_cosines([0.5], [0.2])).values()
    assert math.isnan(rho)
    assert correlations(with_cosines([0.1, 0.2])) == {}, "one domain has no pair"


def test_rounds_with_an_undefined_cosine_are_left_out():
    m = with_cosines([0.0, 9.0, 1.0, 0.5], [0.1, NAN, 0.3, 0.2])
    assert correlations(m) == {(0, 1): pytest.approx(1)}
    assert gaps(m) == {(0, 1): pytest.approx((0.1 + 0.7 + 0.3) / 3)}


def test_gap_is_the_mean_absolute_difference_of_two_cosines():
    assert gaps(with_cosines([0.0, 1.0], [0.5, 0.75])) == {(0, 1): 0.375}


def test_conflict_is_a_negative_product_of_two_training_domains():
    m = made([[[1, 0], [0, 1], [-1, -1]], [[1, 0], [-1, 5], [1, 1]], [[1, 0], [1, 1], [0, 1]]], 2)
    assert conflicts(m) == pytest.approx(1 / 3)


def test_agreement_is_the_mean_cosine_of_training_domains():
    m = made([[[1, 0], [0, 2], [3, 0], [-1, 0]], [[1, 0], [0, 0], [0, 1], [1, 1]]], 3)
    assert agreements(m) == pytest.approx([1 / 3, 0])


def test_inner_product_is_summed_over_ordered_pairs():
    m = made([[[1, 0], [2, 1], [-1, 3], [9, 9]], [[1, 0], [0, 1], [0, 0], [9, 9]]], 3)
    assert gip(m) == pytest.approx([2 * (2 - 1 + 1), 0])
    assert gip(made([[[1, 0]]], 1)) == [0]


def stepped(trajectories, steps, K):
    """Return rounds with these trajectories [R][K + T][P] and steps [R][P], as a probe records them."""
    h, d = (torch.tensor(values, dtype=torch.float64) for values in (trajectories, steps))
    products = torch.einsum("rip,rp->ri", h[:, :K], d)
    cosines = products / (h[:, :K].norm(dim=-1) * d.norm(dim=-1, keepdim=True))
    return made(trajectories, K, cosine=cosines.tolist(), magnitude=d.square().sum(-1).tolist())


def test_alignments_are_products_of_trajectory_and_step():
    h = [[3.0, 4.0], [0.0, 2.0], [9.0, 9.0]]
    m = stepped([h, h, [[0.0, 0.0], *h[1:]]], [[1.0, -2.0], [0.0, 0.0], [1.0, 1.0]], 2)
    assert math.isnan(m.cosine[1][0])
    assert math.isnan(m.cosine[2][0])
    assert [pytest.approx(row) for row in alignments(m)] == [[-5, -4], [0, 0], [0, 2]]
    assert alignment_variances(m) == pytest.approx([0.25, 0, 1])
    relative = relative_alignment_variances(m)
    assert relative[0] == pytest.approx(0.25 / (5 * (25 + 4) / 2))
    assert math.isnan(relative[1])
    assert opposed(m) == pytest.approx(1 / 3)


def test_relative_variance_does_not_depend_on_lengths_and_is_at_most_one():
    h = [[3.0, 4.0], [1.0, 2.0]]
    m = stepped([h, [[30.0, 40.0], [10.0, 20.0]], [[1.0, 0.0], [-1.0, 0.0]]], [[1.0, 1.0], [7.0, 7.0], [5.0, 0.0]], 2)
    first, second, largest = relative_alignment_variances(m)
    assert 0 < first < 1
    assert second == pytest.approx(first)
    assert largest == pytest.approx(1)


def test_nonfinite_round_has_no_inner_product_and_no_variance():
    m = made([[[NAN, 0], [0, 1]], [[1, 0], [0, 1]]], 2, cosine=[[NAN, 0.5], [0.5, 0.5]])
    assert [math.isnan(value) for value in gip(m)] == [True, False]
    assert [math.isnan(value) for value in alignment_variances(m)] == [True, False]
    assert opposed(m) == 0


def test_worst_alignment_is_known_and_does_not_depend_on_scale():
    """Orthogonal: d = h_0 (1 + r) and h_i·h_0 = 1/2. Equal: 1 + r. Opposed: no direction helps both."""
    m = made([[[1, 0], [0, 1]], [[10, 0], [0, 10]], [[1, 0], [1, 0]], [[1, 0], [-1, 0]]], 2)
    assert worst(m) == pytest.approx([0.75, 0.75, 1.5, 0], abs=1e-6)
    assert worst(m, radius=0.0)[:3] == pytest.approx([0.5, 0.5, 1])


def test_distance_from_the_hull_is_zero_inside_and_that_of_the_nearest_point_outside():
    sources = [[2.0, 0.0], [0.0, 2.0]]
    positions = hull(made([[*sources, [1.0, 1.0]], [*sources, [2.0, 2.0]], [*sources, [4.0, 0.0]]], 2))
    assert positions[0] == [Hull(0.0, pytest.approx(1))]
    assert positions[1] == [Hull(pytest.approx(0.5), pytest.approx(1))]
    assert positions[2] == [Hull(pytest.approx(0.5), pytest.approx(1))], "the nearest point is a corner"
    (behind,) = hull(made([[*sources, [-1.0, -1.0]]], 2))[0]
    assert behind == Hull(pytest.approx(2), pytest.approx(-1))


def test_every_held_out_domain_has_a_position():
    sources = [[2.0, 0.0], [0.0, 2.0]]
    ((first, second),) = hull(made([[*sources, [1.0, 1.0], [2.0, 2.0]]], 2))
    assert (first.distance, second.distance) == (0.0, pytest.approx(0.5))
    assert hull(made([sources, sources], 2)) == [[], []]


def test_many_rounds_give_the_same_results_as_single_rounds():
    trajectories = torch.randn(300, 4, 6, generator=torch.Generator().manual_seed(0), dtype=torch.float64).tolist()
    whole = made(trajectories, 3)
    for number in (0, 255, 256, 299):
        one = made([trajectories[number]], 3)
        assert worst(whole)[number] == pytest.approx(worst(one)[0], abs=1e-9)
        assert hull(whole)[number][0] == pytest.approx(hull(one)[0][0], abs=1e-6)


def test_nan_in_one_round_does_not_change_other_rounds():
    m = made([[[NAN, 0], [0, 1], [1, 1]], [[1, 0], [0, 1], [0.5, 0.5]], [[0, 0], [0, 0], [0, 0]]], 2)
    assert [math.isnan(value) for value in worst(m)] == [True, False, True]
    assert [math.isnan(positions[0].distance) for positions in hull(m)] == [True, False, True]
    assert conflicts(m) == 0


def test_divergences_are_means_over_rounds():
    m = made([[[1.0], [1.0]]] * 2, 2, divergence=[[[0.0, 1.0], [2.0, 0.0]], [[0.0, 3.0], [NAN, 0.0]]])
    assert divergence(m) == [[0.0, 2.0], [2.0, 0.0]]
    assert summary(m)["divergence"] == 2.0
    assert divergence(replace(m, divergence=None)) is None


def test_summary_has_only_what_was_measured():
    plain = summary(with_cosines([0.0, 1.0], [0.5, 1.5]))
    assert plain["cosine"] == 0.75
    assert plain["correlation"] == pytest.approx(1)
    assert plain["gap"] == 0.5
    assert math.isnan(plain["invariant"])
    assert not {"hull", "hull_cosine", "divergence"} & plain.keys()


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """ERM and POGM with two seeds each, and a run that was not measured."""
    root = tmp_path_factory.mktemp("measured")
    probe = Probe(every=2, lag=4, target=True, divergence=True)
    for algorithm in (ERM(), POGM()):
        for seed in range(2):
            one = trial(
                algorithm, steps=9, evaluate_every=4, test_domains=(3,), seed=seed, trial_seed=seed, probe=probe
            )
            run(one, root / one.id)
    run(trial(ERM(), steps=2), root / "plain")
    return root


def of(folder, label):
    runs = [r for r in read_runs(folder) if r.label == label and r.trial["probe"]["every"]]
    return [(r, read_measurements(r)) for r in runs]


def test_rounds_of_all_records_are_read(folder):
    ((_, m), _) = of(folder, "ERM")
    assert m.sources == ("0", "15", "30", "60", "75")
    assert m.targets == ("45",)
    assert m.round == [2, 4, 6, 8]
    assert [math.isnan(value) for value in m.invariant] == [True, False, False, False]
    shapes = {name: torch.tensor(getattr(m, name)).shape for name in ("cosine", "difference", "gramian", "divergence")}
    assert shapes == {"cosine": (4, 5), "difference": (4, 5), "gramian": (4, 6, 6), "divergence": (4, 5, 5)}
    norms = torch.tensor(m.gramian).diagonal(dim1=1, dim2=2)
    assert (norms > 0).all()


def test_run_of_an_earlier_version_has_the_same_measurements(folder, tmp_path):
    """Earlier versions wrote the metric `cosine` as `angle`, and no digest of the records."""
    old = shutil.copytree(folder, tmp_path / "old")
    for path in old.glob("*/records.jsonl"):
        path.write_text(path.read_text().replace('"cosine"', '"angle"'))
        path.with_name("done").write_text("done\n")  # without a digest
    assert "angle" in "".join(path.read_text() for path in old.glob("*/records.jsonl"))
    assert rounds_csv(of(old, "POGM")) == rounds_csv(of(folder, "POGM"))
    assert [r.records for r in read_runs(old)] == [r.records for r in read_runs(folder)]


def test_run_without_a_probe_has_no_measurements(folder):
    (plain,) = [r for r in read_runs(folder) if not r.trial["probe"]["every"]]
    assert all("rounds" not in record for record in plain.records)
    assert read_measurements(plain) is None


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"cosine": [[0.5]]}, r"cosine should be \[5\]"),
        ({"gramian": [[[1.0] * 6] * 5]}, r"gramian should be \[6, 6\]"),
        ({"magnitude": [1.0, 2.0, 3.0]}, "some measurements have more rounds"),
        ({"magnitude": None}, "NoneType"),
    ],
)
def test_damaged_measurements_are_left_out_with_a_warning(folder, change, words):
    ((found, _), _) = of(folder, "ERM")
    *others, last = found.records
    damaged = replace(found, records=(*others, {**last, "rounds": {**last["rounds"], **change}}))
    with pytest.warns(RecordWarning, match=words):
        assert read_measurements(damaged) is None


def test_table_has_a_column_for_every_algorithm_and_standard_errors_over_seeds(folder):
    found = [*of(folder, "ERM"), *of(folder, "POGM")]
    table = measure_table(found, "Title", ["A note."])
    assert table.headings == ("ERM", "POGM")
    by_name = {row.key: row.estimates for row in table.rows}
    cell = by_name["cosine"][1]
    values = [summary(m)["cosine"] for _, m in of(folder, "POGM")]
    assert cell.mean == pytest.approx(sum(values) / 2)
    assert cell.stderr == pytest.approx(abs(values[0] - values[1]) / 2 / math.sqrt(2))
    assert cell.n == 2
    text = table.text()
    assert table.texts()["cosine"][1] in text
    assert {"gip", "alignment_variance", "alignment_variance_relative", "opposed"} <= by_name.keys()
    assert "± is the standard error over 2 seeds." in text
    assert "A note." in text
    rows = list(csv.DictReader(io.StringIO(table.csv())))
    assert {row["measurement"] for row in rows} == set(by_name)
    assert json.loads(table.json())["cells"]["cosine"]["POGM"]["mean"] == cell.mean


def test_undefined_measurement_is_a_dash_an_empty_field_and_null(folder):
    ((found, m), *_) = of(folder, "ERM")
    undefined = replace(m, invariant=[NAN] * len(m.round))
    table = measure_table([(found, undefined)], "Title")
    assert "–" in next(line for line in table.text().splitlines() if line.startswith("invariant cosine "))
    assert "ERM,invariant,,,0" in table.csv()
    assert json.loads(table.json())["cells"]["invariant"]["ERM"] == {"mean": None, "stderr": None, "n": 0}


def test_csv_of_rounds_has_one_line_per_round(folder):
    found = of(folder, "POGM")
    rows = list(csv.DictReader(io.StringIO(rounds_csv(found))))
    assert len(rows) == 8
    first, m = rows[1], found[0][1]
    assert (first["algorithm"], first["held_out"], first["seed"], first["round"]) == ("POGM", "45", "0", "4")
    assert float(first["cosine 30"]) == pytest.approx(m.cosine[1][2], rel=1e-5)
    assert float(first["hull 45"]) == pytest.approx(hull(m)[1][0].distance, rel=1e-5)
    assert float(first["divergence 75 0"]) == pytest.approx(m.divergence[1][4][0], rel=1e-5)
    G = m.gramian[1]
    assert float(first["agreement 0 15"]) == pytest.approx(G[0][1] / math.sqrt(G[0][0] * G[1][1]), rel=1e-5)
    assert rows[0]["invariant"] == "", "undefined before round τ"
