"""Trials: JSON, ids and validation."""

import json
from dataclasses import dataclass, fields

import pytest
from support import trial

from pogm import ERM, MADG, POGM, Mixup
from pogm._system.errors import UsageError
from pogm._system.files import canonical_json
from pogm.algorithms import all_algorithms
from pogm.benchmark.plan.trial import Trial, choice, differences, number
from pogm.data.datasets.rotated_digits import RotatedDigits
from pogm.diagnostics import Probe


@pytest.mark.parametrize("name", all_algorithms())
def test_a_trial_survives_a_round_trip_through_json(name):
    one = trial(all_algorithms()[name](), modifiers=(Mixup(alpha=0.3),), seed=7, probe=Probe(every=5, target=True))
    again = Trial.from_json(json.loads(canonical_json(one.to_json())))
    assert again == one
    assert again.id == one.id


def test_the_id_depends_on_everything_that_is_computed_and_on_nothing_else():
    first = trial(POGM(kappa=0.1))
    assert first.id == trial(POGM()).id
    others = [trial(POGM(kappa=0.5)), trial(POGM(), seed=1), trial(POGM(), modifiers=(Mixup(),)), trial(ERM())]
    others.append(trial(POGM(), probe=Probe(every=1)))
    assert len({first.id, *(other.id for other in others)}) == 6
    assert first.id.isalnum()  # it is the name of a directory


def test_a_hyperparameter_that_was_added_later_keeps_the_ids_of_saved_trials():
    """Saved trials of earlier versions have scope and granularity, and no partition."""
    saved = trial(POGM()).to_json()
    assert (saved["algorithm"]["scope"], saved["algorithm"]["granularity"]) == ("all", "global")
    assert "partition" not in saved["algorithm"]
    assert Trial.from_json(saved) == trial(POGM())
    by_layer = trial(POGM(partition="layer"))
    assert by_layer.to_json()["algorithm"]["partition"] == "layer"
    assert Trial.from_json(by_layer.to_json()) == by_layer
    saved["algorithm"]["granularity"] = "layer"
    with pytest.raises(UsageError, match="partition=layer was granularity=layer"):
        Trial.from_json(saved)


def test_the_label_names_the_algorithm_and_the_modifiers():
    assert trial(POGM(), modifiers=(Mixup(),)).label == "POGM + Mixup"


@pytest.mark.parametrize(
    ("algorithm", "options", "message"),
    [
        (ERM(), {"test_domains": (7,)}, r"test domains of RotatedDigits, each once: 0 \(0\), 1 \(15\).*found \[7\]"),
        (ERM(), {"test_domains": (6,)}, r"found \[6\]"),
        (ERM(), {"test_domains": (-1,)}, r"found \[-1\]"),
        (ERM(), {"test_domains": (1, 1)}, r"each once.*found \[1, 1\]"),
        (ERM(), {"test_domains": (True,)}, r"found \[True\]"),
        (ERM(), {"test_domains": ("0",)}, r"found \['0'\]"),
        (
            MADG(),
            {"test_domains": (0, 1, 2, 3, 4)},
            "at least 2 training domains for MADG; found 1 left .*Hold out fewer",
        ),
        (POGM(), {"test_domains": (0, 1, 2, 3, 4, 5)}, "at least 1 training domain for POGM; found 0 left"),
        (ERM(), {"steps": 0}, "steps to be a whole number from 1 to .*found 0"),
        (ERM(), {"steps": 10**12}, "steps to be"),
        (ERM(), {"steps": 10.0}, "steps to be a whole number"),
        (ERM(), {"evaluate_every": 0}, "evaluate_every to be a whole number from 1"),
        (ERM(), {"seed": -1}, "seed to be a whole number from 0"),
        (ERM(), {"seed": 2**63}, "seed to be a whole number"),
        (ERM(), {"hparams_seed": None}, "hparams_seed to be a whole number"),
        (ERM(), {"precision": "fp23"}, "a value of precision out of .*found 'fp23'. Did you mean 'fp32'?"),
    ],
)
def test_an_invalid_value_is_an_error_with_the_expected_and_the_found_value(algorithm, options, message):
    known = {"training": trial(ERM()).training, "steps": 1, "evaluate_every": 1, "test_domains": (0,)}
    with pytest.raises(UsageError, match=message):
        Trial(algorithm=algorithm, **{"dataset": RotatedDigits()} | known | options)


def test_one_training_domain_is_enough_for_a_method_that_allows_it():
    assert trial(POGM(), test_domains=(0, 1, 2, 3, 4)).train_domains == (5,)


@pytest.mark.parametrize(
    ("path", "value", "message"),
    [
        ("steps", "21", "steps of a trial to be of type int; found '21'"),
        ("steps", 21.0, "steps of a trial to be of type int"),
        ("steps", True, "steps to be a whole number"),
        ("dataset", 5, "dataset of a trial to be of type dict"),
        ("dataset.name", "RotatedDigit", "Did you mean 'RotatedDigits'?"),
        ("algorithm", "ERM", "algorithm of a trial to be of type dict"),
        ("algorithm", {}, "a dataset, an algorithm or a modifier with a name; found {}"),
        ("algorithm.name", "PGOM", "Did you mean 'POGM'?"),
        ("algorithm.name", ["POGM"], "with a name"),
        ("algorithm.kappa", "0.5", 'algorithm.kappa is "0.5" there and 0.5 here'),
        ("algorithm.kappa", -1, "POGM.kappa to be a number of at least 0 and at most 1000; found -1"),
        ("algorithm.kapa", 0.5, "Did you mean 'kappa'?"),
        ("modifiers", [3], "with a name; found 3"),
        ("modifiers", "Mixup", "modifiers of a trial to be of type list"),
        ("training.lr", [], "SmallDigits.lr"),
        ("test_domains", ["0"], "test domains"),
        ("test_domains", "0", "test_domains of a trial to be of type list"),
        ("probe", 10, "probe of a trial to be of type dict"),
        ("probe.every", 3, "a lag that is a multiple of 3 rounds"),
        ("probe.every", "1", 'probe.every is "1" there and 1 here'),
        ("probe.evry", 1, "Did you mean 'every'?"),
        ("sede", 0, "a field of a trial .*Did you mean 'seed'?"),
    ],
)
def test_a_wrong_type_or_name_in_json_is_an_error_with_the_field(path, value, message):
    values = trial(POGM()).to_json()
    *parents, last = path.split(".")
    owner = values
    for parent in parents:
        owner = owner[parent]
    owner[last] = value
    with pytest.raises(UsageError, match=message):
        Trial.from_json(values)


@pytest.mark.parametrize("values", [None, [], "trial", {}, {"seed": 0}])
def test_json_that_is_no_trial_is_an_error(values):
    with pytest.raises(UsageError, match=r"Expected a trial with .*fields algorithm, data_seed, dataset"):
        Trial.from_json(values)


def test_a_missing_hyperparameter_in_json_is_an_error():
    values = trial(POGM()).to_json()
    del values["algorithm"]["kappa"]
    with pytest.raises(UsageError, match=r"algorithm.kappa is absent there and 0.1 here"):
        Trial.from_json(values)


def test_differences_list_every_field_and_distinguish_types():
    assert differences({"a": {"b": 1, "c": 2}}, {"a": {"b": 1, "c": 2}}) == ""
    assert differences({"a": {"b": 1.0}, "d": []}, {"a": {"b": 1}}) == (
        "a.b is 1.0 there and 1 here; d is [] there and absent here"
    )


def test_differences_of_two_algorithms_list_only_their_names():
    text = differences(trial(ERM()).to_json(), trial(POGM(), seed=3).to_json())
    assert text == 'algorithm.name is "ERM" there and "POGM" here; seed is 0 there and 3 here'


# A new field.


@dataclass(frozen=True)
class LaterTrial(Trial):
    """A trial of a later version, with two more settings. Its definition is the only change that they need."""

    patience: int = number(3, least=1, most=9, added_later=True)
    rounding: str = choice("nearest", ("nearest", "stochastic"), added_later=True)


def later(**options):
    values = {field.name: getattr(trial(POGM()), field.name) for field in fields(Trial)}
    return LaterTrial(**values | options)


def test_a_new_field_with_its_default_does_not_change_the_id_of_existing_trials():
    assert later().id == trial(POGM()).id
    assert len({later().id, later(patience=4).id, later(rounding="stochastic").id}) == 3


def test_a_new_field_is_validated_saved_and_compared_by_its_definition():
    edited = later(patience=4, rounding="stochastic")
    assert LaterTrial.from_json(json.loads(canonical_json(edited.to_json()))) == edited
    assert LaterTrial.from_json(trial(POGM()).to_json()) == later()  # saved by an earlier version
    assert differences(edited.to_json(), later().to_json()) == (
        'patience is 4 there and absent here; rounding is "stochastic" there and absent here'
    )
    with pytest.raises(UsageError, match="patience to be a whole number from 1 to 9; found 0"):
        later(patience=0)
    with pytest.raises(UsageError, match="a value of rounding out of nearest, stochastic; found 'up'"):
        later(rounding="up")
    with pytest.raises(UsageError, match="patience of a trial to be of type int"):
        LaterTrial.from_json(edited.to_json() | {"patience": "4"})


def test_a_new_field_is_an_option_of_trials_that_are_built_from_parts():
    parts = {"dataset": RotatedDigits(), "algorithm": ERM(), "training": RotatedDigits().training, "Mixup": Mixup()}
    built = LaterTrial.build(parts, (1,), seed=5, steps=None, patience=7)
    assert (built.patience, built.modifiers, built.test_domains) == (7, (Mixup(),), (1,))
    assert (built.seed, built.data_seed, built.trial_seed) == (5, 5, 5)
    assert (built.steps, built.evaluate_every) == (RotatedDigits.steps, RotatedDigits.evaluate_every)
    with pytest.raises(TypeError, match="patienec"):
        LaterTrial.build(parts, (1,), patienec=7)
