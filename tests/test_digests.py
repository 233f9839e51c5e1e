"""Short runs of every released method give the stored numbers: the same bits on the machine that stored them."""

import json
from itertools import product

import pytest
from digests import RELEASED, STORE, cases, environment, parts, registered, run

STORED = json.loads(STORE.read_text())
CASES = tuple(cases())
EXACT = STORED["environment"] == environment()

# Other CPUs and other versions of torch round differently. Largest differences over all cases, measured with the
# kernels of torch, MKL and oneDNN limited to AVX2 and to SSE: 2.0e-5 of the loss, 3.7e-6 of the norm of the weights,
# and 3.5e-4 in the mean accuracy (one image of 240 in one of 12 parts). The tolerances are ten times as large.
TOLERANCES = {"loss": {"rel": 2e-4}, "weights": {"rel": 4e-5}, "accuracy": {"rel": 0, "abs": 4e-3}}
WRITE = "then run: python tests/digests.py --write"


@pytest.mark.parametrize("case", CASES)
def test_run_gives_stored_numbers(case, tmp_path):
    found, stored = run(case, tmp_path / "run"), STORED["cases"][case]
    if EXACT:
        assert found == stored, f"If this change of numbers is intended, {WRITE}"
    else:
        assert found.keys() == stored.keys()
        for name, tolerance in TOLERANCES.items():
            assert found["numbers"][name] == pytest.approx(stored["numbers"][name], **tolerance), name


def test_numbers_are_compared_bit_by_bit():
    if not EXACT:
        pytest.skip(f"compared with {TOLERANCES}: stored on {STORED['environment']}, tested on {environment()}")


def test_stored_digests_belong_to_these_cases():
    assert sorted(STORED["cases"]) == sorted(CASES), f"If the change of cases is intended, {WRITE}"


def test_every_released_method_has_a_case_on_every_embedded_dataset():
    algorithms, modifiers, datasets = registered()
    assert set(RELEASED) <= algorithms | modifiers
    wanted = {(algorithm, (), dataset) for algorithm, dataset in product(algorithms.intersection(RELEASED), datasets)}
    for algorithm, modifier, dataset in product(("ERM", "POGM"), modifiers.intersection(RELEASED), datasets):
        wanted.add((algorithm, (modifier,), dataset))
    assert wanted <= set(map(parts, CASES)), f"Add them to tests/digests.py, {WRITE}"


def test_methods_without_digests_are_reported():
    """A new method needs no digests until it is released, but the summary of the tests names it."""
    algorithms, modifiers, _ = registered()
    unreleased = sorted((algorithms | modifiers).difference(RELEASED))
    if unreleased:
        pytest.skip(f"no digests of {', '.join(unreleased)}; to release a method, see CONTRIBUTING.md")
