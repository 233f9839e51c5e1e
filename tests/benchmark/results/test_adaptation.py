"""Footnotes about what methods see at test time."""

import dataclasses

from pogm.algorithms import all_algorithms
from pogm.benchmark.results.accuracy_tables import averages_table, dataset_table
from pogm.benchmark.results.adaptation import SEES_AT_TEST
from pogm.benchmark.results.selection import TRAINING_DOMAIN
from pogm.modifiers import all_modifiers


def test_tables_say_which_rows_use_unlabelled_test_images(write):
    write("ERM", {0: [0.5], 1: [0.5]})
    runs = write("ARM", {0: [0.6], 1: [0.7]})
    adapting = [
        dataclasses.replace(run, trial={**run.trial, "modifiers": [{"name": name}]}, label=f"ERM + {name}")
        for run in runs
        if run.label == "ERM"
        for name in ("T3A", "TENT")
    ]
    for table in (
        dataset_table([*runs, *adapting], "Toy", TRAINING_DOMAIN),
        averages_table([*runs, *adapting], TRAINING_DOMAIN),
    ):
        notes = [note for note in table.footnotes if note.startswith("Predictions also use")]
        assert notes == [
            "Predictions also use the other images of the batch (64 of the test domain, unlabelled): ARM.",
            "Predictions also use unlabelled images of the test domain (batches of 64, this one and earlier ones): "
            "ERM + T3A, ERM + TENT.",
        ]
        assert " ".join(notes[1].split()[:3]) in table.text()


def test_tables_without_adaptation_have_no_such_note(write):
    table = dataset_table(write("ERM", {0: [0.5], 1: [0.5]}), "Toy", TRAINING_DOMAIN)
    assert not any("Predictions also use" in note for note in table.footnotes)


def test_texts_are_those_of_the_classes_and_every_method_that_predicts_batches_has_one():
    methods = {**all_algorithms(), **all_modifiers()}
    stated = {name: method.sees_at_test for name, method in methods.items() if method.sees_at_test}
    assert stated == SEES_AT_TEST
    assert stated.keys() == {name for name, method in methods.items() if method.prediction_batch_size}
