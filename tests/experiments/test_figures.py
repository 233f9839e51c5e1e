"""Geometry of the drawings (Figures 1 and 6), and numbers of the measured figures (2 to 5)."""

import math
from dataclasses import replace
from functools import partial
from itertools import pairwise, permutations

import pytest
import torch
from run_folders import record, write_run

from pogm import ERM, POGM, Fish
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.table_formats import tables_csv
from pogm.benchmark.runs.runner import RunOptions, run
from pogm.experiments import figure1, figure2, figure3, figure4, figure5, figure6, measured
from pogm.experiments.base import SCALES, Row
from pogm.pareto import alignment, gramian
from pogm.report.figure import Arrow, Cloud, Line, Region

EMBEDDED = SCALES["embedded"]
exact = partial(torch.tensor, dtype=torch.float64)
COLORED = replace(EMBEDDED, datasets=("ColoredDigits",))


def marks(panel, kind, name):
    return [mark for mark in panel.marks if isinstance(mark, kind) and mark.name == name]


def positions(mark):
    return exact([[point.x, point.y] for point in mark.points])


# Figure 1: three quadratic risks, computed directly.


def quadratics():
    for (x, y), degrees in zip(figure1.CENTRES, figure1.STEEP, strict=True):
        turn = math.radians(degrees)
        rotation = exact([[math.cos(turn), -math.sin(turn)], [math.sin(turn), math.cos(turn)]])
        yield rotation @ torch.diag(exact(figure1.CURVATURES)) @ rotation.T, exact([x, y])


def end_of_steps(start, order):
    point = start
    for domain in order:
        curvature, centre = list(quadratics())[domain]
        point = point - figure1.RATE * curvature @ (point - centre)
    return point


@pytest.fixture(scope="module")
def drawn():
    return figure1.figure()


def test_every_step_of_fish_is_half_of_one_of_its_six_inner_paths(drawn):
    (path,) = marks(drawn.panels[1], Line, "Fish")
    spots = positions(path)
    for before, after in pairwise(spots):
        ends = [before + 0.5 * (end_of_steps(before, order) - before) for order in permutations(range(3))]
        assert min((after - end).norm() for end in ends) < 1e-12


def test_arrows_of_one_round_are_the_steps_of_the_methods(drawn):
    start = exact(figure1.START)
    tips = [positions(arrow)[1] for arrow in marks(drawn.panels[0], Arrow, "Fish")]
    ends = [start + 0.5 * (end_of_steps(start, order) - start) for order in permutations(range(3))]
    torch.testing.assert_close(torch.stack(tips), torch.stack(ends))
    (erm,) = marks(drawn.panels[0], Arrow, "ERM")
    mean = torch.stack([end_of_steps(start, [domain]) for domain in range(3)]).mean(0)
    torch.testing.assert_close(positions(erm)[1], mean)


def test_two_inner_paths_of_fish_end_at_the_right_points(drawn):
    walks = [positions(line) for line in marks(drawn.panels[0], Line, "Fish's walk")]
    start = exact(figure1.START)
    assert [len(walk) for walk in walks] == [4, 4]
    for walk, order in zip(walks, ((0, 1, 2), (2, 1, 0)), strict=True):
        torch.testing.assert_close(walk[-1], end_of_steps(start, order))


def test_only_the_order_of_fish_is_random():
    assert figure1.path(Fish(), seed=0) != figure1.path(Fish(), seed=1)
    for method in (ERM(), POGM()):
        assert figure1.path(method, seed=0) == figure1.path(method, seed=1)


def test_erm_and_pogm_reach_the_minimum_of_the_mean_risk_and_fish_oscillates():
    curvature = sum(curvature for curvature, _ in quadratics())
    bottom = torch.linalg.solve(curvature, sum(curvature @ centre for curvature, centre in quadratics()))
    for method in (ERM(), POGM()):
        end = exact(figure1.path(method, rounds=150)[-1])
        assert (end - bottom).norm() < 1e-3
    late = exact(figure1.path(Fish())[-20:])
    assert (late - bottom).norm(dim=1).mean() > 0.1


def test_spread_of_the_steps_of_fish_is_proportional_to_the_rate():
    assert figure1.spread(figure1.RATE / 100) / figure1.spread(figure1.RATE / 10) == pytest.approx(0.1, rel=0.05)


def test_cosines_are_those_of_the_paths(drawn):
    (path,) = marks(drawn.panels[1], Line, "Fish")
    (turns,) = marks(drawn.panels[2], Line, "Fish")
    steps = positions(path).diff(dim=0)
    cosines = torch.cosine_similarity(steps[1:], steps[:-1])
    torch.testing.assert_close(positions(turns)[:, 1], cosines)
    assert [point.x for point in turns.points] == list(range(2, figure1.ROUNDS + 1))


def test_ring_is_a_level_line_of_the_mean_risk(drawn):
    rings = marks(drawn.panels[1], Region, "level lines of the mean risk")
    assert len(rings) == 3
    for ring in rings:
        apart = [(curvature, positions(ring) - centre) for curvature, centre in quadratics()]
        risk = sum(((away @ curvature) * away).sum(1) / 2 for curvature, away in apart)
        torch.testing.assert_close(risk, risk.mean().expand_as(risk))


# Figure 6.


@pytest.fixture(params=[(0, figure6.AGREEING), (1, figure6.CONFLICTING)], ids=["agreeing", "conflicting"])
def geometry(request):
    number, updates = request.param
    return figure6.figure().panels[number], updates


def tip(panel, name):
    (arrow,) = marks(panel, Arrow, name)
    assert arrow.points[0][:2] == (0, 0)
    return positions(arrow)[1]


def test_pogm_is_on_the_boundary_of_its_ball_and_erm_at_the_centre(geometry):
    panel, updates = geometry
    centre = updates.mean(0)
    torch.testing.assert_close(tip(panel, "ERM"), centre)
    balls = marks(panel, Region, "POGM's ball")
    for ball, kappa in zip(balls, (0.5, 0.1, 0.05), strict=True):
        radii = (positions(ball) - centre).norm(dim=1)
        torch.testing.assert_close(radii, (kappa * centre.norm()).expand_as(radii))
    torch.testing.assert_close((tip(panel, "POGM") - centre).norm(), 0.5 * centre.norm())


def test_pogm_has_the_largest_worst_alignment_in_the_ball(geometry):
    panel, updates = geometry
    turns = torch.linspace(0, 2 * math.pi, 3601).double()
    edge = updates.mean(0) + 0.5 * updates.mean(0).norm() * torch.stack([turns.cos(), turns.sin()], 1)
    ours = (updates @ tip(panel, "POGM")).min()
    assert ours > (updates @ edge.T).amin(0).max() - 1e-12
    assert ours > (updates @ tip(panel, "ERM")).min()


def test_pogm_differs_from_the_mean_in_the_direction_of_the_worst_mixture(geometry):
    panel, updates = geometry
    (dot,) = marks(panel, Cloud, "the worst mixture")
    (mixture,) = positions(dot)
    torch.testing.assert_close(
        torch.cosine_similarity(tip(panel, "POGM") - updates.mean(0), mixture, dim=0), exact(1.0)
    )
    square = torch.cat([updates.T, exact([[1, 1, 1]])])
    assert torch.linalg.solve(square, torch.cat([mixture, exact([1])])).min() > -1e-12


def test_mgda_and_upgrad_oppose_no_domain(geometry):
    panel, updates = geometry
    for name in ("MGDA", "UPGrad"):
        assert (updates @ tip(panel, name)).min() > -1e-12


def test_text_of_figure_6_has_the_numbers_of_the_drawing():
    drawn = figure6.figure()
    centre = figure6.CONFLICTING.mean(0)
    erm, pogm = ((figure6.CONFLICTING @ tip(drawn.panels[1], name)).min() for name in ("ERM", "POGM"))
    assert erm < 0 < pogm
    assert f"(h₃·d = −{-erm / centre.square().sum():.2f} ‖h₀‖²)" in drawn.explanation
    assert f"(+{pogm / centre.square().sum():.2f} ‖h₀‖²)" in drawn.explanation
    assert (figure6.AGREEING @ tip(drawn.panels[0], "ERM")).min() > 0


def test_worst_alignment_grows_with_the_radius():
    panel = figure6.figure().panels[2]
    (pogm,), (erm,) = (marks(panel, Line, name) for name in ("POGM", "ERM"))
    gains = positions(pogm)[:, 1]
    assert (gains.diff() > 0).all()
    assert gains[0] == pytest.approx(erm.points[0].y)
    G = gramian(figure6.CONFLICTING)
    assert erm.points[0].y == pytest.approx(float(alignment(G, torch.full((3,), 1 / 3)).min() / G.mean()))


# Figures 2 to 5, on synthetic measurements.


def rounds(numbers, angles, difference=(1.0, 3.0)):
    return {
        "round": list(numbers),
        "cosine": [list(pair) for pair in angles],
        "difference": [list(difference)] * len(angles),
        "layer_difference": [[0.0, 0.0]] * len(angles),
        "magnitude": [1.0] * len(angles),
        "invariant": [None] * len(angles),
        "gramian": [[[1.0, 0.0], [0.0, 1.0]]] * len(angles),
    }


def write(root, label, seed, angles, accuracies=(0.5, 0.6, 0.7), **options):
    """Write a run with a round at step 0 and two before each of two evaluations."""
    pieces = [(0, [1], angles[:1]), (2, [2, 3], angles[1:3]), (4, [4, 5], angles[3:5])]
    lines = [
        record(step, [accuracy, 0, 0], [0, 0, 0], rounds=rounds(numbers, part))
        for (step, numbers, part), accuracy in zip(pieces, accuracies, strict=True)
    ]
    domains = ("+90%", "+80%", "-90%")
    write_run(root, lines, label=label, dataset="ColoredDigits", domains=domains, trial_seed=seed, **options)


ALIKE = [(0.1, 0.2), (0.2, 0.3), (0.3, 0.4), (0.4, 0.5), (0.5, 0.6)]  # ρ = 1, gap 0.1
AGAINST = [(0.1, 0.5), (0.2, 0.4), (None, None), (0.4, 0.2), (0.5, 0.1)]  # ρ = −1, gap 0.3


@pytest.fixture
def runs(tmp_path):
    for label, angles in (("ERM", AGAINST), ("Fish", AGAINST), ("POGM", ALIKE)):
        for seed in (0, 1):
            write(tmp_path, label, seed, angles, (0.5, 0.6 + 0.1 * seed, 0.7))
    write(tmp_path, "Fishr", 0, ALIKE, done=False, failure="no memory")
    return read_runs(tmp_path)


def test_scatter_plot_has_a_dot_for_every_round_and_pair(runs):
    (figure,) = figure2.exhibits(runs, COLORED)
    erm, fish = figure.panels
    (dots,) = marks(erm, Cloud, "ERM")
    assert [point[:2] for point in dots.points] == [pair for pair in AGAINST if pair[0] is not None]
    assert erm.title.replace("\N{NO-BREAK SPACE}", " ") == "ColoredDigits, ERM (ρ = −1.00, gap 0.30)"
    assert fish.title.startswith("ColoredDigits, Fish")
    assert (erm.x_range, erm.square) == (erm.y_range, True)
    (figure,) = figure3.exhibits(runs, COLORED)
    (pogm,) = figure.panels
    assert pogm.title.replace("\N{NO-BREAK SPACE}", " ") == "ColoredDigits, POGM (ρ = 1.00, gap 0.10)"
    assert pogm.x_range == erm.x_range, "the same range for all methods"


def test_notes_have_the_numbers_of_all_finished_methods_and_the_best(runs):
    for module in (figure2, figure3):
        (figure,) = module.exhibits(runs, COLORED)
        numbers, trials, _ = figure.notes
        assert numbers == (
            "ColoredDigits: ρ ERM −1.00 ± 0.00, Fish −1.00 ± 0.00, POGM 1.00 ± 0.00; "
            "gap ERM 0.30 ± 0.00, Fish 0.30 ± 0.00, POGM 0.10 ± 0.00. POGM has the highest ρ and the smallest gap."
        )
        assert "n = 2 trials" in trials


def test_notes_name_the_measured_best_method(tmp_path):
    write(tmp_path, "ERM", 0, ALIKE)
    write(tmp_path, "POGM", 0, [(a, a + 0.01 * (-1) ** i) for i, (a, _) in enumerate(reversed(ALIKE))])
    (figure,) = figure3.exhibits(read_runs(tmp_path), COLORED)
    assert figure.notes[0].endswith("ERM has the highest ρ and POGM the smallest gap.")


def test_figure_4_has_means_over_domains_and_rounds_and_then_over_trials(runs):
    figure, table = figure4.exhibits(runs, COLORED)
    angle, difference = figure.panels
    (erm,) = marks(angle, Line, "ERM")
    assert [(p.x, round(p.y, 9), p.stderr, p.n) for p in erm.points] == [(2, 0.3, 0, 2), (4, 0.3, 0, 2)]
    (pogm,) = marks(angle, Line, "POGM")
    assert [round(point.y, 9) for point in pogm.points] == [0.3, 0.5]
    assert {point.y for mark in difference.marks for point in mark.points} == {2.0}
    assert not marks(angle, Line, "Fishr"), "it failed"
    assert list(table.labels) == ["ERM", "Fish", "POGM"]


def test_table_of_figure_4_has_means_over_all_rounds(tmp_path):
    for seed in range(2):
        write(tmp_path, "ERM", seed, [(0.2, 0.4), (0.6, 0.4), (0.1, -0.3), (0.5, 0.5), (None, 0.9)])
    table = figure4.agreement_table(read_runs(tmp_path), "ColoredDigits")
    (row,) = table.rows
    cosine, lowest, gap, distance, accuracy = row.cells
    assert cosine.mean == pytest.approx((1.4 + 1.0 + 0.9) / 9)
    assert lowest.mean == pytest.approx((0.2 + 0.4 - 0.3 + 0.5) / 4), "of the domain that agrees least in each round"
    assert gap.mean == pytest.approx((0.2 + 0.2 + 0.4 + 0.0) / 4)
    assert (distance.mean, cosine.stderr, cosine.n) == (2.0, 0.0, 2)
    assert accuracy.mean == pytest.approx(70)
    assert "ColoredDigits,ERM,gap,0.2000,0.0000,2" in tables_csv([table]).splitlines()


def test_figure_5_has_a_panel_for_each_training_domain_and_one_for_the_accuracy(runs):
    (figure,) = figure5.exhibits(runs, COLORED)
    assert [panel.title for panel in figure.panels] == ["source +80%", "source -90%", "held out: +90%"]
    first, second, accuracy = figure.panels
    assert first.y_range == second.y_range
    for panel, expected in ((first, [0.2, 0.45]), (second, [0.4, 0.15])):
        (erm,) = marks(panel, Line, "ERM")
        assert [round(point.y, 9) for point in erm.points] == expected
    (erm,) = marks(accuracy, Line, "ERM")
    assert [(p.x, round(p.y, 9), round(p.stderr, 9)) for p in erm.points] == [
        (2, 65.0, round(5 / math.sqrt(2), 9)),
        (4, 70.0, 0.0),
    ]


@pytest.mark.parametrize("module", [figure2, figure3, figure4, figure5])
def test_figure_without_runs_says_so(module):
    for figure in module.exhibits([], EMBEDDED):
        assert figure.panels == ()
        assert figure.notes[-1].startswith("0 finished runs")


# Planned trials.


def planned(module, scale):
    return [trial for trials in module.plan(scale).values() for trial in trials]


def test_measured_figures_share_their_runs():
    plans = [{trial.id for trial in planned(module, EMBEDDED)} for module in (figure2, figure3, figure4, figure5)]
    assert plans[0] == plans[1] == plans[2] == plans[3]
    assert len(plans[0]) == 5 * 2 * 3
    assert figure1.plan(EMBEDDED) == figure6.plan(EMBEDDED) == {}


def test_every_round_is_measured_with_the_first_domain_held_out():
    for trial in planned(figure2, EMBEDDED):
        assert (trial.probe.every, trial.test_domains) == (1, (0,))
        assert not trial.modifiers
    (fishr,) = {trial.algorithm for trial in planned(figure2, EMBEDDED) if trial.label == "Fishr"}
    assert (fishr.penalty, fishr.penalty_anneal_iters < EMBEDDED.steps) == (100.0, True)


@pytest.mark.parametrize(
    ("module", "scale", "datasets"),
    [
        (figure2, "full", {"ColoredMNIST", "PACS"}),
        (figure5, "full", {"VLCS"}),
        (figure5, "pacs", {"PACS"}),
        (figure4, "mnist", {"ColoredMNIST", "RotatedMNIST"}),
    ],
)
def test_datasets_are_those_of_the_paper_if_the_scale_has_them(module, scale, datasets):
    plan = planned(module, SCALES[scale])
    assert {trial.dataset.title for trial in plan} == datasets
    assert all(trial.training.network == "resnet18" for trial in plan if trial.dataset.large)
    assert {trial.probe.every for trial in plan} == {1}, "every round, at every scale"


def test_run_of_the_trainer_can_be_drawn(tmp_path):
    trial = measured.trials(COLORED, ())[Row("POGM")][0]
    run(replace(trial, steps=5, evaluate_every=2), tmp_path / "run", RunOptions())
    figure, _ = figure4.exhibits(read_runs(tmp_path), COLORED)
    assert [[point.x for point in mark.points] for panel in figure.panels for mark in panel.marks] == [[2, 4]] * 2
