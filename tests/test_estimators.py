"""Estimators for scikit-learn."""

import importlib.util
import pickle
import re
import subprocess
import sys
from pathlib import Path

import numpy as np
import pandas as pd
import polars as pl
import pytest
import sklearn
from sklearn.base import clone
from sklearn.utils.estimator_checks import check_estimator
from threadpoolctl import threadpool_limits

from pogm import POGM, DomainGeneralizer, DomainRegressor
from pogm._system.errors import DivergedError, UsageError
from pogm.data.datasets.array_dataset import ArrayWarning

ROOT = Path(__file__).parents[1]
RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 4))
Y = np.where(X[:, 0] + 0.1 * RNG.normal(size=90) > 0, "ill", "well")
HOSPITALS = np.repeat(["a", "b", "c"], 30)
TABLE = {
    "age": [50.0, None, 41.0, 77.0, 60.0, 39.0] * 15,
    "smoker": ["yes", "no", None, "no", "yes", "sometimes"] * 15,
    "children": [1, 2, 0, 0, 3, 1] * 15,
}


def fitted(algorithm="ERM", kind=DomainGeneralizer, x=X, y=Y, domains=HOSPITALS, **options):
    return kind(algorithm, **{"steps": 20, "random_state": 0} | options).fit(x, y, domains=domains)


@pytest.mark.filterwarnings("ignore")  # the checks pass unusual data
@pytest.mark.parametrize("kind", [DomainGeneralizer, DomainRegressor])
def test_checks_of_scikit_learn_pass(kind):
    """The checks know no domains, and only ERM can be fitted without them."""
    estimator = kind("ERM", steps=15, lr=3e-2)
    results = check_estimator(estimator, on_fail=None, on_skip=None)
    assert len(results) > 45
    skipped = {result["check_name"] for result in results if result["status"] == "skipped"}
    assert skipped == {"check_array_api_input"}  # arrays of other libraries: the environment must allow them
    failed = {result["check_name"]: result["exception"] for result in results if result["status"] == "failed"}
    assert not failed


def test_same_random_state_gives_the_same_bits():
    first, again, other = (fitted("POGM", random_state=seed).predict_proba(X) for seed in (0, 0, 1))
    np.testing.assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    saved = pickle.loads(pickle.dumps(fitted("POGM")))
    np.testing.assert_array_equal(saved.predict_proba(X), first)


def test_classes_and_probabilities():
    model = fitted(steps=100, lr=1e-2)
    assert list(model.classes_) == ["ill", "well"]
    assert list(model.domains_) == ["a", "b", "c"]
    found = model.predict_proba(X)
    np.testing.assert_allclose(found.sum(1), 1)
    np.testing.assert_array_equal(model.predict(X), model.classes_[found.argmax(1)])
    assert model.score(X, Y) > 0.9


def test_hyperparameters_of_an_instance_are_used_and_can_be_cloned():
    strong, weak = (fitted(POGM(kappa=kappa)).predict_proba(X) for kappa in (0.9, 0.0))
    assert not np.allclose(strong, weak)
    estimator = DomainGeneralizer(POGM(kappa=0.3), modifiers=["Mixup"])
    assert clone(estimator).get_params() == estimator.get_params()


@pytest.mark.parametrize("algorithm", ["CORAL", "DANN", "MTL", "ARM"])
def test_methods_with_networks_or_predictions_of_their_own(algorithm):
    model = fitted(algorithm, steps=60, lr=1e-2)
    assert model.score(X[:30], Y[:30]) > 0.7


# Domains.


@pytest.mark.parametrize("kind", [DomainGeneralizer, DomainRegressor])
def test_without_domains_the_error_says_what_to_pass(kind):
    with pytest.raises(ValueError, match=r"Expected the domain of each sample for POGM; found none\. Pass it to fit: "):
        kind("POGM").fit(X, X[:, 0] > 0)


def test_erm_without_domains_is_erm_with_one_domain():
    one = fitted(domains=np.zeros(90)).predict_proba(X)
    np.testing.assert_array_equal(fitted(domains=None).predict_proba(X), one)
    assert not np.array_equal(fitted().predict_proba(X), one)


@pytest.mark.parametrize(
    ("domains", "message"),
    [
        (HOSPITALS[:-1], "one domain per sample, 90; found 89"),
        (np.where(HOSPITALS == "a", np.nan, 1.0), "found none for 30 of 90 samples"),
        (np.where(HOSPITALS == "a", None, HOSPITALS), "found none for 30 of 90 samples"),
        (np.zeros((90, 2)), "1d array"),
    ],
)
def test_unusable_domains_are_an_error(domains, message):
    with pytest.raises(ValueError, match=message):
        fitted("POGM", domains=domains)


def test_too_few_domains_for_a_method_are_an_error():
    with pytest.raises(UsageError, match="Expected at least 2 domains for MADG; found 1"):
        fitted("MADG", domains=np.zeros(90))


# Parameters.


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"steps": 0}, "Expected steps of DomainGeneralizer to be a whole number from 1"),
        ({"steps": 2.5}, "found 2.5"),
        ({"lr": float("nan")}, "Expected lr of DomainGeneralizer to be a number"),
        ({"validation_fraction": 1.0}, "from 0 to 0.9; found 1.0"),
        ({"network": "mlpp"}, "Did you mean 'mlp'"),
        ({"algorithm": "POGN"}, "Did you mean 'POGM'"),
        ({"algorithm": POGM}, "Expected the name or an instance of a pogm Algorithm as algorithm; found <class"),
        ({"modifiers": ["Mixupp"]}, "Did you mean 'Mixup'"),
        ({"modifiers": "Mixup"}, r"Expected a list of modifiers; found 'Mixup'. Write modifiers=\['Mixup'\]"),
    ],
)
def test_unusable_parameters_are_an_error(options, message):
    with pytest.raises(ValueError, match=message):
        fitted(**options)


def test_method_that_needs_classes_is_refused_for_a_regression():
    with pytest.raises(UsageError, match="Expected the loss cross_entropy for CDANN"):
        fitted("CDANN", DomainRegressor, y=X[:, 0])


# Tables.


def test_data_frames_of_pandas_and_polars_and_arrays_give_the_same_model():
    names = ["p", "q", "r", "s"]
    expected = fitted().predict_proba(X)
    for frame in (pd.DataFrame(X, columns=names), pl.DataFrame(X, schema=names)):
        model = fitted(x=frame)
        assert list(model.feature_names_in_) == names
        np.testing.assert_array_equal(model.predict_proba(frame), expected)
    with pytest.raises(ValueError, match="feature names"):
        model.predict(pd.DataFrame(X, columns=[*names[:3], "other"]))


def test_categories_and_missing_values_of_pandas_and_polars_are_encoded_alike():
    """Texts, categories, nullable integers, None and NaN."""
    frames = [
        pd.DataFrame(TABLE),
        pd.DataFrame(TABLE).astype({"smoker": "category", "children": "Int64"}),
        pl.DataFrame(TABLE),
        pl.DataFrame(TABLE).with_columns(pl.col("smoker").cast(pl.Categorical)),
        np.array([list(row) for row in zip(*TABLE.values(), strict=True)], dtype=object),
    ]
    models = [fitted("POGM", x=frame, domains=pd.Series(HOSPITALS)) for frame in frames]
    found = [model.predict_proba(frame) for model, frame in zip(models, frames, strict=True)]
    for other in found[1:]:
        np.testing.assert_array_equal(other, found[0])
    assert models[0].model_.dataset.encoding.numbers == ("age", "children")
    assert models[0].model_.dataset.encoding.pairs == (("smoker", "no"), ("smoker", "sometimes"), ("smoker", "yes"))


def test_preprocessing_is_the_documented_one():
    """Median of the training samples and an indicator; a new category is like a missing one."""
    model = fitted(x=pd.DataFrame(TABLE), validation_fraction=0)
    age = np.array(TABLE["age"], dtype=float)
    filled = np.where(np.isnan(age), np.nanmedian(age), age)
    rows = pd.DataFrame({"age": [None, 50.0], "smoker": ["unknown", None], "children": [2, 2]})
    with pytest.warns(ArrayWarning, match="found unknown"):
        inputs = model.model_.transform({name: rows[name].to_numpy() for name in rows})
    expected = np.array([np.nanmedian(age), 50.0]) - filled.mean()
    np.testing.assert_allclose(inputs[:, 0], expected / filled.std(), rtol=1e-5)
    np.testing.assert_array_equal(inputs[:, 2:], [[0, 0, 0, 1, 0], [0, 0, 0, 0, 0]])
    alike = rows.assign(smoker=[None, "unknown"])
    np.testing.assert_array_equal(model.predict_proba(alike), model.predict_proba(rows))


@pytest.mark.parametrize(
    ("x", "message"),
    [
        (np.where(X > 2, np.inf, X), "infinity"),
        (pd.DataFrame({"id": [f"{i}-{i}" for i in range(101)]}), "at most 100 different texts, in the column id of X"),
        (pd.DataFrame({"a": []}), "Expected a table with samples and columns; found 0 × 1"),
    ],
)
def test_unusable_tables_are_an_error(x, message):
    y, domains = np.arange(len(x)) % 2, np.arange(len(x)) % 3
    with pytest.raises(ValueError, match=message):
        fitted(x=x, y=y, domains=domains)


# Validation samples, and regression.


def test_best_step_is_kept(capsys):
    model = fitted(steps=60, lr=0.3, verbose=True)
    lines = [line.split() for line in capsys.readouterr().out.splitlines()]
    scores = {int(line[1].partition("/")[0]): float(line[3]) for line in lines}
    assert len(scores) > 15
    assert model.validation_score_ == pytest.approx(max(scores.values()), abs=1e-3)
    assert model.best_step_ == next(step for step, score in scores.items() if score == max(scores.values()))
    assert fitted(steps=60, lr=0.3, validation_fraction=0).best_step_ == 59


def test_domain_of_one_sample_can_be_used():
    domains = np.where(np.arange(90) == 0, "single", HOSPITALS)
    with pytest.warns(ArrayWarning, match="found only well in single"):
        model = fitted("POGM", domains=domains)
    assert list(model.domains_) == ["a", "b", "c", "single"]


def test_regression_does_not_depend_on_the_unit_of_the_targets():
    y = 2 * X[:, 0] - X[:, 1]
    model = fitted("ERM", DomainRegressor, y=y, steps=200, lr=1e-2)
    assert model.score(X, y) > 0.9
    other = fitted("ERM", DomainRegressor, y=1000 * y + 20, steps=200, lr=1e-2)
    np.testing.assert_allclose(other.predict(X), 1000 * model.predict(X) + 20, rtol=0.02, atol=30)


@pytest.mark.parametrize("fraction", [0, 0.3])
def test_weights_that_a_modifier_chooses_are_kept_with_their_score(fraction):
    """SWAD averages weights until the end. A step with a better score before does not replace them."""
    y, options = X[:, 0] + np.sin(3 * X[:, 1]), {"steps": 60, "lr": 3e-2, "validation_fraction": fraction}
    last = fitted("ERM", DomainRegressor, y=y, modifiers=["SWAD"], **options)
    plain = fitted("ERM", DomainRegressor, y=y, **options)
    assert not np.allclose(last.predict(X), plain.predict(X))
    assert last.best_step_ == 59
    if not fraction:  # validated on the first sample of each domain
        first = [list(HOSPITALS).index(name) for name in last.domains_]
        error = np.abs(last.predict(X) - y)[first].mean()
        assert last.validation_score_ == pytest.approx(-error, rel=1e-4)


def test_targets_that_cannot_be_written_to_are_no_warning():
    y = X[:, 0].copy()
    y.flags.writeable = False  # as those of a column of pandas
    fitted("ERM", DomainRegressor, y=y, steps=2)


def test_divergence_is_an_error():
    with pytest.raises(DivergedError, match="Choose a smaller lr than 1e"):
        fitted("ERM", DomainRegressor, y=X[:, 0], lr=1e11)


# Pipelines, cross-validation and imports.


def test_example_runs():
    spec = importlib.util.spec_from_file_location("scikit_learn_example", ROOT / "examples" / "scikit_learn.py")
    example = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(example)
    with threadpool_limits(1):
        accuracies = example.main()
    assert {len(found) for found in accuracies.values()} == {4}
    assert accuracies["POGM"][:3].min() > 0.65
    assert accuracies["POGM"][3] < 0.5  # the marker has the opposite sign at the last hospital


def test_code_of_the_page_runs():
    page = (ROOT / "docs/scikit_learn.md").read_text()
    names = {}
    with sklearn.config_context():  # the page enables metadata routing
        for block in re.findall(r"```python\n(.*?)```", page, re.DOTALL):
            exec(compile(block, "scikit_learn.md", "exec"), names)
    assert names["model"].score(names["X"], names["y"]) > 0.7


def test_scikit_learn_is_imported_only_for_the_estimators():
    program = (
        "import sys, pogm; pogm.POGM; assert 'sklearn' not in sys.modules; pogm.DomainRegressor; "
        "assert 'sklearn' in sys.modules; assert 'DomainGeneralizer' in dir(pogm)"
    )
    subprocess.run([sys.executable, "-c", program], check=True)
