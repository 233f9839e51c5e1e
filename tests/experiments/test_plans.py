"""Plans of the experiments: rows, numbers of trials, hyperparameters and seeds."""

from collections import Counter
from dataclasses import fields, replace
from pathlib import Path

import pytest
from run_folders import record, write_run
from sample_files import write_heart

from pogm._system.errors import UsageError
from pogm.algorithms import all_algorithms
from pogm.benchmark.plan.parsing import build_trial
from pogm.benchmark.results.paired import differences
from pogm.benchmark.results.published import rows
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.table import Table
from pogm.benchmark.results.table_formats import tables_csv
from pogm.engine.session import Engine, Session
from pogm.experiments import all_experiments, catalogue, evidence, find_experiments
from pogm.experiments.base import SCALES, Row, find_scale
from pogm.experiments.output import empty_run
from pogm.experiments.planning import all_trials
from pogm.experiments.table1 import CONTROLS, PAPER
from pogm.experiments.trials import (
    default_trial,
    finished_keys,
    first_trial,
    plan_search,
    shorten_schedules,
    trial_keys,
)
from pogm.modifiers import all_modifiers

EMBEDDED, SMALL, FULL = SCALES["embedded"], SCALES["small"], SCALES["full"]
ONCE = replace(FULL, configurations=1, ablation=1, trials=1)  # instead of tens of thousands of trials
DOMAINS = 3 + 6 + 4 + 4 + 4 + 4 + 6  # domains of the seven datasets of the paper
TABLE1 = 18 + len(CONTROLS)  # rows
ABLATIONS = ("table3", "table4", "table5")


def ids(name, scale):
    return [trial.id for trial in all_experiments()[name].trials(scale)]


def test_every_table_and_figure_of_the_paper_is_an_experiment():
    tables = [f"table{number}" for number in range(1, 6)]
    figures = [f"figure{number}" for number in range(1, 7)]
    others = ["all_methods", "centre", "erm_plus_plus", "evidence", "evidence_search", "fewer_domains", "fewer_samples"]
    others += ["inner_optimizer", "kappa", "pogm_ablation", "pogm_variants", "soups"]
    assert list(all_experiments()) == [*tables, *figures, *others]


@pytest.mark.parametrize("name", all_experiments())
def test_title_of_an_experiment_has_its_number_in_the_paper(name):
    found = all_experiments()[name]
    number = name.removeprefix("table").removeprefix("figure")
    named = f"{'Table' if name.startswith('table') else 'Figure'} {number}: " if number.isdigit() else ""
    assert found.title.startswith(named)
    assert len(found.title) > len(named)
    assert any(line.split(maxsplit=1) == [name, found.title] for line in catalogue())


def test_unknown_experiment_and_unknown_scale_are_errors():
    with pytest.raises(UsageError, match=r"found 'tabel2'. Did you mean 'table2'"):
        find_experiments(["tabel2"])
    with pytest.raises(UsageError, match="Did you mean 'embedded'"):
        find_scale("embeded")


@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_plan_has_no_trial_twice_and_only_datasets_of_the_scale(scale):
    few = replace(scale, configurations=1, ablation=2, trials=1, seeds=2, changed_by=("--trials",))
    for found in all_experiments().values():
        trials = found.trials(few)
        assert len({trial.id for trial in trials}) == len(trials)
        assert {trial.dataset.title for trial in trials} <= set(scale.datasets)


@pytest.mark.parametrize(
    ("name", "embedded", "full"),
    [
        ("table1", TABLE1 * 9 * 2, TABLE1 * DOMAINS),
        ("table2", 5 * 9 * 2, 5 * (3 + 4 + 4)),  # ColoredMNIST, PACS, OfficeHome
        ("table3", 2 * 9 * 2 * 15, 2 * DOMAINS),  # OfficialPOGM and POGM
        ("inner_optimizer", 7 * 3 * 3, 0),
        ("figure1", 0, 0),
        ("figure6", 0, 0),
    ],
)
def test_number_of_runs_follows_the_protocol(name, embedded, full):
    assert (len(ids(name, EMBEDDED)), len(ids(name, ONCE))) == (embedded, full)


def test_full_scale_has_twenty_configurations_and_three_trials():
    assert (FULL.configurations, FULL.ablation, FULL.trials) == (20, 20, 3)
    few = replace(FULL, datasets=("ColoredMNIST",))
    searched, ablated = (
        {key for trials in all_experiments()[name].plan(few).values() for key in trial_keys(trials)}
        for name in ("table1", "table3")
    )
    assert len(searched) == TABLE1 * 3 * 20 * 3
    assert ablated < searched, "Tables 3 to 5 are of the search of Table 1"


@pytest.mark.parametrize("name", all_experiments())
def test_trials_can_be_counted_without_building_them(name):
    """Keys are equal exactly if trials are equal, and their number is known before the trials are built."""
    scale = replace(EMBEDDED, ablation=3)
    keys, built = set(), set()
    for trials in all_experiments()[name].plan(scale).values():
        found = trial_keys(trials)
        assert len(found) == len(trials)
        assert first_trial(trials).id == trials[0].id
        assert Counter(found.values()) == Counter(trial.dataset.title for trial in trials)
        keys |= set(found)
        built |= {trial.id for trial in trials}
    assert len(keys) == len(built)


def test_finished_runs_are_found_by_building_only_similar_trials():
    search = plan_search(EMBEDDED, Row("POGM"), configurations=2)
    saved = {trial.id: {"label": trial.label, "trial": trial.to_json()} for trial in search[:5]}
    assert finished_keys(search, saved) == set(list(trial_keys(search))[:5])
    assert finished_keys(plan_search(EMBEDDED, Row("POGM", settings=("kappa=0",))), saved) == set()


def test_table_1_has_the_rows_of_the_paper_in_its_order():
    printed = [row["algorithm"].casefold() for row in rows("paper_table1")]
    assert [row.name.casefold() for row in PAPER] == printed


def test_tables_3_to_5_share_their_searches():
    first, *others = (ids(name, EMBEDDED) for name in ABLATIONS)
    assert all(other == first for other in others)


@pytest.mark.parametrize(
    ("setting", "values"), [("meta_lr", {0.05, 0.1, 0.5}), ("inner_steps", {1, 5, 10}), ("kappa", {0.05, 0.1, 0.5})]
)
@pytest.mark.parametrize("scale", SCALES.values(), ids=SCALES)
def test_every_value_of_an_ablation_is_drawn_in_every_trial(scale, setting, values):
    trials = all_experiments()["table3"].plan(replace(scale, datasets=scale.datasets[:1]))[Row("OfficialPOGM")]
    for seed in range(scale.trials):
        assert {getattr(trial.algorithm, setting) for trial in trials if trial.trial_seed == seed} == values


def test_table_1_and_all_methods_share_runs():
    paper = replace(EMBEDDED, trials=1, algorithms=tuple(row.name for row in PAPER))
    assert set(ids("table1", paper)) < set(ids("all_methods", EMBEDDED))
    labels = {trial.label for trial in all_experiments()["all_methods"].trials(EMBEDDED)}
    assert labels == set(all_algorithms()) | {f"ERM + {name}" for name in all_modifiers()}


def test_every_schedule_starts_within_a_run_at_the_embedded_scale():
    for name, found in all_experiments().items():
        for trial in found.trials(EMBEDDED):
            for method in (trial.algorithm, *trial.modifiers):
                schedule = {f.name: getattr(method, f.name) for f in fields(method) if f.name.endswith("_iters")}
                for field, step in schedule.items():
                    latest = trial.steps if field.startswith("end_") else trial.steps / 2
                    assert step < latest, (name, trial.label)


def test_other_scales_use_published_hyperparameters():
    assert all(not shorten_schedules(method, FULL) for method in all_algorithms().values())
    fishr = plan_search(FULL, Row("Fishr"), configurations=1)[0]
    assert fishr.algorithm == all_algorithms()["Fishr"]()


def test_phase_that_starts_earlier_keeps_its_length():
    gga = all_algorithms()["GGA"]  # from step 100 to step 150
    assert shorten_schedules(gga, SMALL) == {"start_anneal_iters": 40, "end_anneal_iters": 90}
    assert shorten_schedules(gga, replace(SMALL, latest_start=120)) == {}


def test_given_weights_are_for_photographs_only():
    given = replace(FULL, weights="sha256:" + "0" * 64)
    weights = {
        trial.dataset.title: trial.training.weights for trial in plan_search(given, Row("ERM"), configurations=1)
    }
    assert {name for name, found in weights.items() if found == given.weights} == set(FULL.datasets[2:])
    assert weights["ColoredMNIST"] == "random"


def test_trials_outside_of_a_search_share_data_weights_and_minibatches():
    trials = [default_trial(EMBEDDED, "ColoredDigits", Row(name), 1, 2) for name in all_algorithms()]
    assert len({(trial.seed, trial.data_seed, trial.trial_seed) for trial in trials}) == 1
    assert {trial.training.network for trial in trials} == {"small_cnn"}


def test_setting_need_not_apply_to_rows_that_are_not_selected():
    """Table 1 also has the row ERM, which has no κ."""
    chosen = replace(EMBEDDED, algorithms=("POGM",), settings=("kappa=0.1",), changed_by=("--algorithms", "POGM"))
    trials = all_experiments()["table1"].trials(chosen)
    assert {(trial.label, trial.algorithm.kappa) for trial in trials} == {("POGM", 0.1)}


def test_evidence_has_every_method_and_modifier():
    labels = {" + ".join((row.algorithm, *row.modifiers)) for row in evidence.rows(SCALES["mnist"])}
    assert labels == set(all_algorithms()) | {f"ERM + {name}" for name in all_modifiers()}


def test_evidence_on_arrays_leaves_out_modifiers_for_images(tmp_path):
    """The modifiers that are left out refuse these inputs, with an error."""
    write_heart(tmp_path)
    on_images, on_arrays = ({row.modifiers for row in evidence.rows(scale)} for scale in (SCALES["mnist"], SMALL))
    left_out = on_images - on_arrays
    refused = {*evidence.FOR_IMAGES, *evidence.FOR_NORMALIZATION} & {*all_modifiers()}
    assert left_out == {(name,) for name in refused}
    for modifiers in left_out:
        trial = build_trial("HeartDisease", "ERM", ["va"], data=tmp_path, modifiers=modifiers)
        with pytest.raises(UsageError, match="Expected"):
            Session([trial.task(tmp_path)], Engine()).step()


def test_evidence_keeps_the_order_of_its_rows():
    """Methods that are added to the package come after the rows that have records."""
    names = [row.name for row in evidence.rows(SCALES["mnist"])]
    assert names[: len(evidence.ON_OTHER_DATA)] == [row.name for row in evidence.ON_OTHER_DATA]
    on_photographs = [row.name for row in evidence.rows(SCALES["pacs"])]
    assert on_photographs == [row.name for row in evidence.rows(SCALES["office_caltech"])]
    assert on_photographs[: len(evidence.ON_PHOTOGRAPHS)] == [row.name for row in evidence.ON_PHOTOGRAPHS]


@pytest.mark.parametrize("name", ["small", "features", "pacs", "office_caltech"])
def test_schedules_of_the_evidence_start_within_the_first_third_of_a_run(name):
    for trial in all_experiments()["evidence"].trials(replace(SCALES[name], seeds=1, changed_by=("--trials", "1"))):
        for method in (trial.algorithm, *trial.modifiers):
            starts = {f.name: getattr(method, f.name) for f in fields(method) if f.name.endswith("_iters")}
            ends = [starts.pop(field) for field in [*starts] if field.startswith("end_")]
            assert all(start <= trial.steps / 3 for start in starts.values()), trial.label
            assert all(end < trial.steps for end in ends), trial.label


def test_evidence_uses_the_default_penalty_of_fishr():
    scale = replace(SMALL, seeds=1, algorithms=("Fishr",), changed_by=("--trials", "1"))
    assert {trial.algorithm.penalty for trial in all_experiments()["evidence"].trials(scale)} == {1000.0}


def test_rows_of_the_evidence_run_one_after_the_other():
    scale = replace(SCALES["pacs"], algorithms=("ERM", "POGM"))
    trials = all_trials([all_experiments()["evidence"]], scale)
    assert [(trial.label, trial.trial_seed) for trial in trials] == [
        (label, seed) for label in ("ERM", "POGM") for seed in range(3) for _ in range(4)
    ]
    others = all_trials([all_experiments()["centre"]], scale)
    assert [trial.trial_seed for trial in others] == sorted(trial.trial_seed for trial in others)


@pytest.mark.parametrize("name", ["centre", "erm_plus_plus", "evidence", "kappa", "pogm_ablation", "pogm_variants"])
def test_paired_comparison_has_the_same_seeds_in_every_row(name):
    rows = all_experiments()[name].rows(EMBEDDED)
    seen = [{(t.dataset.title, t.test_domains, t.seed, t.trial_seed) for t in trials} for trials in rows.values()]
    assert all(one == seen[0] for one in seen)
    assert len(seen[0]) == (6 + 3) * 10


@pytest.mark.parametrize(("scale", "latest"), [("embedded", 30), ("pacs", 300), ("full", 600)])
def test_ablation_of_erm_plus_plus_leaves_out_one_part_at_a_time(scale, latest):
    rows = all_experiments()["erm_plus_plus"].rows(replace(SCALES[scale], seeds=1))
    first = {row.name: trials[0].algorithm for row, trials in rows.items()}
    assert list(first) == ["ERM++", "ERM++ without warm-up", "ERM++ without average", "ERM"]
    parts = [(method.warm_up, method.average) for method in list(first.values())[:3]]
    assert parts == [(True, True), (False, True), (True, False)]
    assert first["ERM++"].average_anneal_iters == latest, "within the first third of a run, or the default"


def test_paired_comparison_uses_the_network_of_the_weights():
    pacs = SCALES["pacs"]
    networks = {trial.training.network for trial in all_experiments()["centre"].trials(pacs)}
    assert networks == {"resnet50_v1"}
    other = replace(pacs, weights="sha256:" + "0" * 64, large_network="mobilenet_v2", changed_by=("--weights", "file"))
    networks = {trial.training.network for trial in all_experiments()["centre"].trials(other)}
    assert networks == {"mobilenet_v2"}
    small = replace(pacs, datasets=("RotatedMNIST",), changed_by=("--datasets", "RotatedMNIST"))
    assert {trial.training.network for trial in all_experiments()["centre"].trials(small)} == {"mnist_cnn"}


def test_paired_difference_is_the_mean_over_seeds_of_means_over_domains(tmp_path):
    for label, base in {"ERM": 0.5, "other": 0.75}.items():
        for domain in range(3):
            for seed in range(2):
                accuracy = base + 0.05 * seed * (label == "other")
                write_run(
                    tmp_path,
                    [record(299, [accuracy] * 3, [0.5] * 3)],
                    label=label,
                    test_domains=(domain,),
                    trial_seed=seed,
                )
    runs = sorted(read_runs(tmp_path), key=lambda run: (run.label, run.trial_seed, sorted(run.test_domains)))
    table = differences(runs, "ERM")
    cell = table.rows[1].estimates[0]
    assert (cell.mean, cell.n) == (pytest.approx(27.5), 2)
    assert cell.stderr == pytest.approx(2.5)
    assert [texts[0] for texts in table.texts().values()] == ["+0.0 ± 0.0", "+27.5 ± 2.5"]
    missing = differences(runs[:-1], "ERM").rows[1].estimates[0]
    assert (missing.mean, missing.n, missing.stderr) == (pytest.approx(25.0), 1, None), "a seed counts when complete"


@pytest.mark.parametrize("name", [name for name in all_experiments() if not name.startswith("figure")])
def test_tables_of_an_experiment_can_be_written_to_one_file(name):
    """Two seeds of every planned row; figures have measured runs, see test_figures.py."""
    scale = replace(SMALL, datasets=("HeartDisease",)) if name == "evidence_search" else EMBEDDED
    few = replace(scale, configurations=1, ablation=2, trials=2, seeds=2, changed_by=("--trials",))
    runs = [
        replace(empty_run(trial, Path(".")), label=row.name, records=(record(9, [0.7] * 6, [0.6] * 6),), done=True)
        for row, trials in all_experiments()[name].rows(few).items()
        for trial in trials
    ]
    tables = [one for one in all_experiments()[name].exhibits(runs, few) if isinstance(one, Table)]
    assert bool(tables) == bool(runs)
    if tables:
        header, *lines = (line.split(",") for line in tables_csv(tables).splitlines())
        assert len(header) == len(set(header)), "every column has a name of its own"
        assert lines
