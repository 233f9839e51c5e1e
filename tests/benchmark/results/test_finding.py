"""The main finding in one sentence, against hand-computed values."""

import pytest

from pogm.benchmark.results.finding import best_runs, find_baseline, find_main


def test_a_gain_beyond_the_noise_is_called_better_with_its_error_and_n(write):
    write("ERM", {0: [0.50, 0.60, 0.70], 1: [0.50, 0.60, 0.70]})
    runs = write("POGM", {0: [0.60, 0.70, 0.80], 1: [0.61, 0.71, 0.81]})
    found = find_main(runs)
    assert found.sentence == (
        "POGM has the highest mean accuracy on unseen domains of Toy, 70.5 ± 4.7 %; it is better than ERM beyond "
        "the noise (+10.5 ± 0.0 points, n = 3 seeds, paired)."
    )
    assert [method.label for method in found.methods] == ["POGM", "ERM"]
    assert found.methods[0].difference.mean == pytest.approx(10.5)


def test_a_gain_within_the_noise_is_a_tie(write):
    write("ERM", {0: [0.50, 0.60], 1: [0.50, 0.60]})
    sentence = find_main(write("POGM", {0: [0.70, 0.59], 1: [0.70, 0.59]})).sentence
    assert "; it is tied with ERM (+9.5 ± 10.5 points, n = 2 seeds, paired: within the noise)." in sentence


def test_a_large_difference_of_few_seeds_is_not_called_a_tie(write):
    """5 ± 0.5 points with two seeds: t(1) = 12.71."""
    write("ERM", {0: [0.600, 0.600]})
    sentence = find_main(write("POGM", {0: [0.545, 0.555]})).sentence
    assert "; the next method, POGM, is not significantly different from ERM (-5.0 ± 0.5 points, n = 2" in sentence
    assert "paired: the 95 % interval, -11.4 to +1.4, contains 0)." in sentence


def test_more_methods_need_a_larger_gain(write):
    """One comparison: t(2) = 4.30; ten comparisons: t(2) = 14.09."""
    write("ERM", {0: [0.50, 0.50, 0.50]})
    runs = write("POGM", {0: [0.58, 0.60, 0.62]})  # 10 ± 1.15
    assert "beyond the noise" in find_main(runs).sentence
    for number in range(9):
        runs = write(f"M{number}", {0: [0.4, 0.41, 0.42]})
    assert "not significantly different from ERM" in find_main(runs).sentence


def test_erm_can_be_the_best(write):
    write("ERM", {0: [0.60, 0.61]})
    write("Fish", {0: [0.10, 0.20]})
    sentence = find_main(write("POGM", {0: [0.59, 0.60]})).sentence
    assert "ERM has the highest mean accuracy" in sentence
    assert "; the next method, POGM, is worse than ERM beyond the noise (-1.0 ± 0.0 points" in sentence


@pytest.mark.parametrize(
    ("results", "words"),
    [
        (
            {"ERM": [0.5], "POGM": [0.6]},
            "it differs from ERM by +10.0 points, and the noise is unknown with n = 1 seed.",
        ),
        (
            {"ERM": [0.6], "POGM": [0.5]},
            "differs from ERM by -10.0 points, and the noise is unknown with n = 1 seed.",
        ),
        ({"POGM": [0.5, 0.6]}, "and there is no other method to compare it with."),
        ({"Fish": [0.5], "POGM": [0.6]}, "but there is no run of ERM to compare it with."),
        ({"ERM": [None], "Fish": [0.5], "POGM": [0.6]}, "but ERM is not complete, so there is no difference to it"),
        ({"ERM": [0.5, 0.5], "POGM": [0.6, None]}, "Preliminary, 3 of 4 runs are done: POGM"),
        ({"ERM": [None]}, "There is no result yet: none of 1 runs is done."),
    ],
)
def test_the_sentence_says_what_is_missing(write, results, words):
    for label, values in results.items():
        runs = write(label, {0: values})
    assert words in find_main(runs).sentence


def test_runs_that_have_not_started_make_a_finding_preliminary(write):
    assert find_main(write("ERM", {0: [0.5]}), waiting=3).sentence.startswith("Preliminary, 1 of 4 runs are done: ")


def test_without_every_held_out_domain_there_is_no_result(write):
    runs = write("ERM", {0: [0.5], 1: [None]})
    assert "no method has a result for every held-out domain with one seed" in find_main(runs).sentence


def test_datasets_have_equal_weights(write):
    write("ERM", {0: [0.2, 0.3], 1: [0.4, 0.5]})
    found = find_main(write("ERM", {0: [0.9, 0.9]}, dataset="Other"))
    assert found.methods[0].mean.mean == pytest.approx(100 * (0.35 + 0.9) / 2)
    assert "on unseen domains of 2 datasets" in found.sentence


def test_baseline_may_have_the_modifiers_of_all_methods():
    assert find_baseline(["ERM + Mixup", "ERM", "POGM"]) == "ERM"
    assert find_baseline(["ERM + Mixup", "POGM + Mixup"]) == "ERM + Mixup"
    assert find_baseline(["ERM + Mixup", "POGM"]) is None
    assert find_baseline([]) is None


def test_the_best_run_of_a_dataset_is_one_of_the_best_method(write):
    write("ERM", {0: [0.99, 0.1], 1: [0.1, 0.1]})
    (choice,) = best_runs(write("POGM", {0: [0.6, 0.7], 1: [0.6, 0.8]}))
    assert (choice.label, choice.domain, choice.trial_seed, choice.step) == ("POGM", 1, 1, 0)
    assert best_runs([]) == []
