"""Refusals before anything is computed, with the reason; initial weights of trials."""

from dataclasses import replace

import pytest
from combined_runs import member

from pogm import ARM, CORAL, ERM, MTL, POGM
from pogm._system.errors import IntegrityError, UsageError
from pogm.benchmark.combining import members
from pogm.benchmark.combining.combine import plan_combinations
from pogm.benchmark.combining.initial_weights import digest_initial_weights
from pogm.benchmark.combining.members import find_groups
from pogm.benchmark.results.record_file import RecordWarning
from pogm.benchmark.results.records import read_runs
from pogm.benchmark.runs.directory import load_trial


def plan(sweep, *rules, **options):
    return plan_combinations(find_groups(read_runs(sweep), **options), sweep / "out", rules or ("uniform", "greedy"))


def weights_file(folder):
    (path,) = (folder / "model").glob("*.safetensors")
    return path


def test_runs_with_other_initial_weights_are_refused_for_soups_only(sweep, add_run):
    add_run(init_seed=None)
    with pytest.raises(
        UsageError, match=r"different initial weights \(random, seed 0 and random, seed 14\).*--shared-init"
    ):
        plan(sweep)
    assert len(plan(sweep, "logits")[0].group.members) == 5


def test_runs_with_other_data_are_refused(sweep, add_run):
    add_run(data_seed=3)
    for rule in ("uniform", "logits"):
        with pytest.raises(UsageError, match=r"data drawn with different seeds.*\(0 and 3\)"):
            plan(sweep, rule)


def test_runs_with_other_networks_are_refused(sweep, add_run):
    training = replace(member(4).training, nonlinear_classifier=True)
    add_run(training=training)
    for rule in ("uniform", "logits"):
        with pytest.raises(UsageError, match="different networks"):
            plan(sweep, rule)


def test_runs_with_other_held_out_domains_or_algorithms_are_not_combined(sweep, add_run):
    add_run(test_domains=(1,))
    add_run(algorithm=CORAL())
    assert [len(one.group.members) for one in plan(sweep)] == [4]
    (both,) = plan(sweep, across_algorithms=True)
    assert len(both.group.members) == 5  # CORAL has the network and the initial weights of ERM
    assert both.group.label == "CORAL / ERM"


def test_models_that_adapt_to_their_batch_have_soups_but_no_ensemble(sweep, add_run):
    for number in (0, 1):
        add_run(algorithm=MTL(), seed=number, hparams_seed=number, steps=2)
    with pytest.raises(UsageError, match="predict each sample on its own"):
        plan(sweep, "logits", labels=["MTL"])
    assert len(plan(sweep, labels=["MTL"])) == 1


def test_unfinished_and_damaged_runs_are_left_out_with_the_reason(sweep):
    unfinished, cut, changed = [run.folder for run in read_runs(sweep)][:3]
    (unfinished / "done").unlink()
    with pytest.warns(RecordWarning, match=rf"{unfinished} is left out: The run is unfinished\."):
        (only,) = plan(sweep)
    assert len(only.group.members) == 3
    weights_file(cut).write_bytes(weights_file(cut).read_bytes()[:-7])
    content = bytearray(weights_file(changed).read_bytes())
    content[-1] ^= 1  # the size is the same
    weights_file(changed).write_bytes(content)
    with (
        pytest.warns(RecordWarning, match=f"{unfinished} is left out"),
        pytest.warns(RecordWarning, match=f"{cut} is left out: Its weights have"),
        pytest.warns(RecordWarning, match=f"{changed} is left out: Expected"),
        pytest.raises(IntegrityError, match="two or more intact models"),
    ):
        plan(sweep)


@pytest.mark.filterwarnings("ignore::pogm.benchmark.results.records.RecordWarning")
def test_a_folder_without_two_finished_runs_is_refused(sweep):
    for run in read_runs(sweep)[1:]:
        (run.folder / "done").unlink()
    with pytest.raises(UsageError, match="two or more finished runs"):
        plan(sweep)
    with pytest.raises(UsageError, match="a label of the runs"):
        plan(sweep, labels=["Fish"])


def test_runs_without_a_second_one_are_named_in_one_line(sweep, add_run, capsys, monkeypatch):
    monkeypatch.setattr(members, "LISTED", 1)
    alone = [str(add_run(trial_seed=seed)) for seed in (5, 6)]
    plan(sweep)
    shown = capsys.readouterr().err
    assert shown.count("there is no second run") == 1
    assert "and 1 more are left out: there is no second run to combine them with." in shown
    assert any(folder in shown for folder in alone)


def test_a_combination_is_not_a_member_and_not_resumed(sweep):
    from pogm.benchmark.combining.combine import combine
    from pogm.engine.engine import Engine

    planned = plan(sweep, "uniform")
    list(combine(planned, None, Engine()))
    assert [len(one.group.members) for one in plan(sweep, "uniform")] == [4]
    with pytest.raises(UsageError, match=r"a combination of runs .*, which is not trained"):
        load_trial(planned[0].folders["uniform"])


def test_initial_weights_depend_on_their_seed_the_network_and_the_weights_file():
    one = member(0)
    same = [
        replace(one, seed=5, data_seed=4, trial_seed=3, hparams_seed=2, steps=7),
        replace(one, training=replace(one.training, lr=0.1, batch_size=3, dropout=0.5, weight_decay=0.1)),
        replace(one, algorithm=POGM(kappa=0.1)),
        replace(one, init_seed=None, seed=0),
    ]
    other = [
        replace(one, init_seed=1),
        replace(one, init_seed=None),
        replace(one, training=replace(one.training, nonlinear_classifier=True)),
        replace(one, training=replace(one.training, weights="sha256:" + "0" * 64)),
        replace(one, algorithm=ARM()),
    ]
    expected = digest_initial_weights(one)
    assert all(digest_initial_weights(each) == expected for each in same)
    assert all(digest_initial_weights(each) != expected for each in other)
    built = [each.task(None).build_network().state_dict() for each in (one, same[0], other[0])]
    assert all(leaf.equal(built[1][name]) for name, leaf in built[0].items())
    assert not all(leaf.equal(built[2][name]) for name, leaf in built[0].items())


def test_init_seed_changes_weights_and_not_minibatches():
    one, other = member(0), replace(member(0), init_seed=7)
    assert ERM() == one.algorithm
    assert one.id != other.id
    assert one.task(None).seed == other.task(None).seed
    assert replace(one, init_seed=None).to_json().keys() == one.to_json().keys() - {"init_seed"}
