"""Model selection (section 9 of the protocol), on the example of section 16."""

import random

import pytest

from pogm.benchmark.results.records import read_runs
from pogm.benchmark.results.selection import (
    LEAVE_ONE_DOMAIN_OUT,
    SELECTIONS,
    TEST_DOMAIN,
    TRAINING_DOMAIN,
    oracle_early_stop,
)


def only(choices):
    (choice,) = choices
    return choice


def seed_of(runs, choice):
    return only(run for run in runs if run.id == choice.run).hparams_seed


def test_training_domain_selection_of_section_16_chooses_a_at_step_100(section_16):
    choice = only(TRAINING_DOMAIN(section_16))
    assert (choice.accuracy, choice.step, seed_of(section_16, choice)) == (0.55, 100, 0)
    assert choice.validation == pytest.approx(0.75)


def test_first_of_equal_steps_is_chosen(section_16):
    choice = only(TRAINING_DOMAIN(run for run in section_16 if run.hparams_seed == 1))
    assert (choice.accuracy, choice.step, choice.validation) == (0.65, 0, 0.70)


def test_oracle_of_section_16_chooses_b_at_its_last_step(section_16):
    choice = only(TEST_DOMAIN(section_16))
    assert (choice.accuracy, choice.step, seed_of(section_16, choice)) == (0.60, 100, 1)


def test_larger_hparams_seed_of_equal_runs_is_chosen(make_run, make_record, tmp_path):
    for seed in (2, 10, 1):
        make_run([make_record(0, [seed / 100, 0, 0], [0.40, 0, 0])], hparams_seed=seed)
    assert only(TEST_DOMAIN(read_runs(tmp_path))).accuracy == 0.10


def test_early_stopped_oracle_of_section_16_chooses_a_at_step_0(section_16):
    choice = only(oracle_early_stop(-1)(section_16))
    assert (choice.accuracy, choice.step, seed_of(section_16, choice)) == (0.50, 0, 0)


def test_early_stopped_oracle_compares_only_steps_above_its_minimum(section_16):
    assert only(oracle_early_stop(0)(section_16)).accuracy == 0.60
    late = only(oracle_early_stop(100)(section_16))
    assert (late.accuracy, late.reason) == (None, "no step above 100")


def test_null_accuracy_is_never_chosen(make_run, make_record, tmp_path):
    make_run(
        [make_record(0, [0.3, 0, 0], [0.3, 0.2, 0.2]), make_record(30, [0.9, 0, 0], [None, 0.9, None])],
        hparams_seed=0,
    )
    make_run([make_record(30, [0.2, 0, 0], [0.1, 0.1, 0.1])], hparams_seed=1)
    runs = read_runs(tmp_path)
    assert only(TRAINING_DOMAIN(runs)).accuracy == 0.3  # step 30 of seed 0 has no validation accuracy
    assert only(TEST_DOMAIN(runs)).accuracy == 0.2  # the last record of seed 0 has no accuracy on the test domain


def test_group_with_null_accuracies_only_is_diverged(make_run, make_record, tmp_path):
    make_run([make_record(0, [None] * 3, [None] * 3)])
    for selection in (TRAINING_DOMAIN, TEST_DOMAIN):
        choice = only(selection(read_runs(tmp_path)))
        assert (choice.accuracy, choice.reason) == (None, "diverged")


@pytest.mark.parametrize(
    ("ending", "reason"), [({"done": False}, "unfinished"), ({"done": False, "failure": "x"}, "failed")]
)
def test_unfinished_runs_are_not_chosen(make_run, make_record, tmp_path, ending, reason):
    make_run([make_record(0, [0.9, 0, 0], [0.9] * 3)], hparams_seed=1, **ending)
    assert only(TRAINING_DOMAIN(read_runs(tmp_path))).reason == reason
    make_run([make_record(0, [0.1, 0, 0], [0.1] * 3)], hparams_seed=0)
    choice = only(TRAINING_DOMAIN(read_runs(tmp_path)))
    assert (choice.accuracy, choice.left_out) == (0.1, (reason,))


def test_trials_with_different_settings_are_ambiguous(make_run, make_record, tmp_path):
    for kappa in (0.1, 0.5):
        make_run([make_record(0, [kappa, 0, 0], [kappa] * 3)], kappa=kappa)
    assert only(TRAINING_DOMAIN(read_runs(tmp_path))).reason == "ambiguous: settings differ"


def write_pairs(make_run, make_record):
    """Write runs that hold out A, and A with B or C. Seed 0 at step 30 has the highest mean accuracy on B and C."""
    for seed, accuracies in [(0, [(0.4, 0.4), (0.9, 0.7)]), (1, [(0.5, 0.5), (0.6, 0.6)])]:
        steps = [0, 30]
        make_run([make_record(s, [0.1 * (seed + 1) + s / 1000, 0, 0], [0] * 3) for s in steps], hparams_seed=seed)
        for v in (1, 2):
            records = [
                make_record(s, [0.99 if i != v else accuracies[k][v - 1] for i in range(3)], [0] * 3)
                for k, s in enumerate(steps)
            ]
            make_run(records, hparams_seed=seed, test_domains=[0, v])


def test_leave_one_domain_out_chooses_by_the_mean_over_runs_with_two_held_out_domains(make_run, make_record, tmp_path):
    write_pairs(make_run, make_record)
    choice = next(c for c in LEAVE_ONE_DOMAIN_OUT(read_runs(tmp_path)) if c.domain == 0)
    assert (choice.accuracy, choice.step) == (0.13, 30)
    assert choice.validation == pytest.approx(0.8)


def test_leave_one_domain_out_ignores_steps_that_a_run_does_not_have(make_run, make_record, tmp_path):
    write_pairs(make_run, make_record)
    runs = read_runs(tmp_path)
    pair = next(run for run in runs if run.test_domains == {0, 2} and run.hparams_seed == 0)
    lines = (pair.folder / "records.jsonl").read_text().splitlines(keepends=True)
    (pair.folder / "records.jsonl").write_text(lines[0])
    choice = next(c for c in LEAVE_ONE_DOMAIN_OUT(read_runs(tmp_path)) if c.domain == 0)
    assert (choice.accuracy, choice.step) == (0.23, 30)  # now seed 1 with 0.6; seed 0 has 0.4 at step 0


def test_run_with_averaged_weights_is_selected_by_their_record_only(make_run, make_record, tmp_path):
    plain = [make_record(step, [0.9, 0, 0], [0.9, 0.9, 0.9]) for step in (0, 30)]
    make_run([*plain, make_record(30, [0.4, 0, 0], [0.3, 0.5, 0.7], swad=True)], label="ERM + SWAD")
    (run,) = read_runs(tmp_path)
    assert [record["step"] for record in run.records] == [0, 30]
    assert only(TRAINING_DOMAIN([run])).validation == pytest.approx(0.6)
    for selection in (TRAINING_DOMAIN, TEST_DOMAIN, oracle_early_stop(30)):
        choice = only(selection([run]))
        assert (choice.accuracy, choice.step) == (0.4, 30)


def test_leave_one_domain_out_matches_averaged_weights_of_different_steps(make_run, make_record, tmp_path):
    for test_domains, step, inside in (([0], 0, [0.4, 0, 0]), ([0, 1], 30, [0, 0.5, 0]), ([0, 2], 60, [0, 0, 0.7])):
        plain = [make_record(step, [0.9] * 3, [0.9] * 3) for step in (0, 30, 60)]
        make_run([*plain, make_record(step, inside, [0] * 3, swad=True)], test_domains=test_domains)
    choice = next(c for c in LEAVE_ONE_DOMAIN_OUT(read_runs(tmp_path)) if c.domain == 0)
    assert (choice.accuracy, choice.step, choice.validation) == (0.4, 0, pytest.approx(0.6))


def test_leave_one_domain_out_without_runs_with_two_held_out_domains_has_a_reason(section_16):
    assert only(LEAVE_ONE_DOMAIN_OUT(section_16)).reason == "no pair runs"


def test_run_with_two_held_out_domains_is_not_a_result_for_either(make_run, make_record, tmp_path):
    make_run([make_record(0, [0.9] * 3, [0.9] * 3)], test_domains=[0, 1])
    assert [(c.domain, c.reason) for c in TRAINING_DOMAIN(read_runs(tmp_path))] == [
        (0, "not run"),
        (1, "not run"),
    ]


def test_choice_does_not_depend_on_the_order_of_the_runs(make_sweep):
    runs = make_sweep(labels=("ERM", "POGM"), domains=("A", "B", "C"), seeds=2, pairs=True)
    shuffled = random.Random(0).sample(runs, len(runs))
    for selection in (*SELECTIONS, oracle_early_stop(30)):
        assert set(selection(runs)) == set(selection(shuffled))


def test_every_selection_has_a_name_and_a_rule_of_one_sentence():
    everything = (*SELECTIONS, oracle_early_stop(3000))
    assert len({selection.name for selection in everything}) == 4
    for selection in everything:
        assert selection.rule.endswith(".")
        assert ". " not in selection.rule
