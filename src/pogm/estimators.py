"""Estimators for scikit-learn: classification and regression on tables with samples of several domains.

Preprocessing is part of the estimator, and is fitted on the training samples of `fit` only, without its validation
samples. A missing number is replaced by the median, and an indicator column says where values were missing. Numbers are
standardised. A column of texts becomes one column of zeros and ones for each category; a missing or new category has
only zeros. Targets of a regression are standardised during training.
"""

import numbers
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from sklearn.base import BaseEstimator, ClassifierMixin, RegressorMixin
from sklearn.utils import check_random_state
from sklearn.utils.multiclass import check_classification_targets
from sklearn.utils.validation import check_array, check_is_fitted, column_or_1d, validate_data
from torch import Tensor

from pogm._system.errors import DataError, DivergedError, UsageError
from pogm.algorithms import Algorithm, algorithm_class
from pogm.algorithms.erm import ERM
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.context import use_threads
from pogm.core.hyperparameters import MOST_SAMPLES
from pogm.data.datasets.array_dataset import SmallArrays
from pogm.data.datasets.base import TRAIN, VAL, Domain
from pogm.data.datasets.table_in_memory import TableInMemory
from pogm.data.tables.encoding import find_encoding
from pogm.deployment.model import TrainedModel, set_tensors
from pogm.engine.session import Engine, Session, split_statistics
from pogm.engine.trainer import final, train
from pogm.modifiers import Modifier, modifier_class

Array = npt.NDArray[Any]
EVALUATIONS = 20  # evaluations on the validation samples during `fit`


class _DomainEstimator(BaseEstimator):  # type: ignore[misc]
    """Parameters, training and preprocessing that both estimators share."""

    def __init__(
        self,
        algorithm: str | Algorithm = "POGM",
        *,
        modifiers: Sequence[str | Modifier] = (),
        network: str = "mlp",
        steps: int = 300,
        batch_size: int = 32,
        lr: float = 1e-3,
        weight_decay: float = 0.0,
        validation_fraction: float = 0.2,
        device: str = "cpu",
        random_state: int | np.random.RandomState | None = None,
        verbose: bool = False,
    ):
        self.algorithm = algorithm
        self.modifiers = modifiers
        self.network = network
        self.steps = steps
        self.batch_size = batch_size
        self.lr = lr
        self.weight_decay = weight_decay
        self.validation_fraction = validation_fraction
        self.device = device
        self.random_state = random_state
        self.verbose = verbose

    def fit(self, X: Any, y: Any, domains: Any = None) -> Self:
        """Train on samples of several domains.

        Args:
            X: Samples [N, columns]: an array, or a data frame of pandas or polars. Columns are numbers, where NaN is a
                missing value, or texts.
            y: Classes or targets [N].
            domains: Domain of each sample [N], such as the hospital, as numbers or texts. Only for ERM, which does not
                use domains, it may be left out; then all samples are one domain.

        Raises:
            ValueError: The data or the parameters cannot be used. The message says what to pass.
            DivergedError: The weights are not finite after training.
        """
        self._check_parameters()
        algorithm = _build(self.algorithm, algorithm_class, Algorithm, "algorithm")
        if isinstance(self.modifiers, str | Modifier):
            raise UsageError(
                f"Expected a list of modifiers; found {self.modifiers!r}. Write modifiers=[{self.modifiers!r}]."
            )
        modifiers = tuple(_build(one, modifier_class, Modifier, "modifiers") for one in self.modifiers)
        columns, y = self._validate(X, y)
        names, rows = _group_by_domain(domains, len(y), algorithm, self)
        try:
            encoding = find_encoding(columns, "X")
            stored = torch.from_numpy(encoding.encode(columns, "X"))
        except DataError as error:
            raise UsageError(str(error)) from error
        targets = self._encode_targets(y)
        dataset = TableInMemory(
            domains=names,
            classes=self._class_names(),
            numbers=encoding.numbers,
            categories=encoding.categories,
            indicators=bool(stored.isnan().any()),
        )
        random = check_random_state(self.random_state)
        seed = int(random.randint(2**31))
        trial = Trial(
            dataset=dataset,
            algorithm=algorithm,
            test_domains=(),
            training=SmallArrays(
                network=self.network, batch_size=self.batch_size, lr=self.lr, weight_decay=self.weight_decay
            ),
            steps=self.steps,
            evaluate_every=max(self.steps // EVALUATIONS, 1),
            modifiers=modifiers,
            seed=seed,
            evaluation="validation",
        )
        data = [_split(stored[index], targets[index], self.validation_fraction, random) for index in rows]
        self.model_, self.best_step_, self.validation_score_ = self._train(trial, data)
        self.domains_ = np.array(names)
        return self

    def _check_parameters(self) -> None:
        limits: dict[str, tuple[Any, float, float]] = {
            "steps": (numbers.Integral, 1, 1e8),
            "batch_size": (numbers.Integral, 1, MOST_SAMPLES),
            "lr": (numbers.Real, 1e-12, 1e12),
            "weight_decay": (numbers.Real, 0, 1e12),
            "validation_fraction": (numbers.Real, 0, 0.9),
        }
        for name, (kind, least, most) in limits.items():
            value = getattr(self, name)
            if not isinstance(value, kind) or isinstance(value, bool) or not least <= value <= most:
                text = "a whole number" if kind is numbers.Integral else "a number"
                raise UsageError(
                    f"Expected {name} of {type(self).__name__} to be {text} from {least:g} to {most:g}; found "
                    f"{value!r}. Leave it out for its default."
                )

    def _validate(self, X: Any, y: Any) -> tuple[dict[str, Array], Array]:
        """Return the columns by name and the targets, with the checks of scikit-learn."""
        if y is None:
            raise UsageError(
                f"{type(self).__name__} requires y to be passed, but the target y is None. Pass it to fit."
            )
        columns = self._read_columns(X, reset=True)
        y = column_or_1d(y, warn=True)
        if len(y) != len(next(iter(columns.values()))):
            raise ValueError(
                f"Expected as many targets as samples; found {len(y)} in y and {len(next(iter(columns.values())))} in "
                "X: inconsistent numbers of samples."
            )
        return columns, y

    def _read_columns(self, X: Any, *, reset: bool) -> dict[str, Array]:
        """Return the columns of a data frame or an array by name; check the number and the names of columns."""
        if hasattr(X, "columns") and hasattr(X, "shape"):  # a data frame
            validate_data(self, X, reset=reset, skip_check_array=True)
            if 0 in X.shape:
                raise UsageError(f"Expected a table with samples and columns; found {X.shape[0]} × {X.shape[1]}.")
            return {str(name): _to_array(X[name]) for name in X.columns}
        table = validate_data(self, X, reset=reset, dtype=None, ensure_all_finite="allow-nan")
        if table.dtype.kind in "OUS":
            table = _to_array(table)
        elif np.isinf(table).any():
            raise ValueError("Expected finite numbers, or NaN for missing values, in X; found infinity.")
        return {f"x{number}": column for number, column in enumerate(np.moveaxis(table, 1, 0))}

    def _encode_targets(self, y: Array) -> Tensor:
        raise NotImplementedError

    def _class_names(self) -> tuple[str, ...]:
        return ()

    def _train(self, trial: Trial, data: list[Domain]) -> tuple[TrainedModel, int, float]:
        """Train, and return the model of the best step, the step, and its score on the validation samples."""
        task = replace(trial.task(None), load=lambda: data)
        best: tuple[float, int, dict[str, Tensor]] | None = None
        with use_threads(1):  # the same bits on every machine; more threads are slower for small networks
            session = Session([task], Engine(self.device))
            for found in train(session, trial.schedule):
                assert found is not None  # nothing stops the training
                if found.diverged[0]:
                    raise DivergedError(
                        f"Expected finite weights and losses; found {found.diverged[0]}, at step {found.step} of "
                        f"{type(trial.algorithm).__name__}. Choose a smaller lr than {self.lr:g}."
                    )
                score = _validation_score(found.scores[0])
                if self.verbose:
                    print(f"step {found.step}/{trial.steps - 1}  validation {score:.4g}")
                is_last = found.step == trial.steps - 1
                if best is None or score > best[0] or (is_last and self.validation_fraction == 0):
                    best = (score, found.step, _predicting_tensors(session))
            for found in filter(None, final(session)):  # a modifier chooses the weights, as SWAD does
                best = (_validation_score(found.scores[0]), found.step, _predicting_tensors(session))
            session.close()
        assert best is not None
        score, step, tensors = best
        network = task.build_network().double()
        weights, statistics = split_statistics(tensors)
        set_tensors(network, weights)
        description = {"classes": list(self._class_names()), "stored_size": None}
        statistics = {name: leaf.double() for name, leaf in statistics.items()}
        return TrainedModel(network, trial, description, statistics), step, score

    def _outputs(self, X: Any) -> Tensor:
        """Return the outputs of the network for new samples, in float64."""
        check_is_fitted(self)
        columns = self._read_columns(X, reset=False)
        model: TrainedModel = self.model_
        encoding = model.dataset.encoding  # type: ignore[attr-defined]
        try:
            stored = torch.from_numpy(encoding.encode(columns, "X"))
        except DataError as error:
            raise UsageError(str(error)) from error
        with torch.no_grad():
            return model.forward(model.transform.transform.prepare(stored, model.statistics, torch.float64))

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.allow_nan = True
        tags.input_tags.string = True
        tags.target_tags.required = True
        return tags


PARAMETERS = """
    Each step draws a minibatch of every domain. The weights of the best step on validation samples are kept.

    Args:
        algorithm: Name of an algorithm, or an instance with its hyperparameters: ``POGM(kappa=0.2)``.
        modifiers: Names or instances of modifiers, such as ``["Mixup"]``.
        network: Name of the network.
        steps: Number of minibatches of each domain.
        batch_size: Samples of each domain in a minibatch.
        lr: Learning rate.
        weight_decay: L2 penalty of the optimizer.
        validation_fraction: Fraction of each domain that is held back to choose the best step. A domain with too few
            samples is validated on its training samples. With 0, the weights of the last step are kept.
        device: "cpu" or "cuda".
        random_state: Seed of weights, minibatches and the validation split. The same seed gives the same bits.
        verbose: Print the score on the validation samples during training.
"""


class DomainGeneralizer(ClassifierMixin, _DomainEstimator):  # type: ignore[misc]
    __doc__ = f"""Classifier that learns from several domains and is used on new ones, for scikit-learn.
{PARAMETERS}
    Attributes:
        classes_: Classes, sorted.
        domains_: Names of the training domains.
        model_: The trained module, with its preprocessing.
        best_step_: Number of the minibatch after which the weights were kept.
        validation_score_: Accuracy on the validation samples at this step, the mean over domains.

    Example:
        >>> import numpy as np
        >>> from pogm import DomainGeneralizer
        >>> rng = np.random.default_rng(0)
        >>> X, hospitals = rng.normal(size=(90, 4)), np.repeat(["a", "b", "c"], 30)
        >>> model = DomainGeneralizer("POGM", steps=50, random_state=0).fit(X, X[:, 0] > 0, domains=hospitals)
        >>> model.predict(X[:2]).shape
        (2,)
    """

    def predict_proba(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the probability of each class [N, classes], in the order of `classes_`."""
        found: npt.NDArray[np.float64] = self._outputs(X).softmax(-1).numpy()
        return found

    def predict(self, X: Any) -> Array:
        """Return the most probable class of each sample [N]."""
        numbers_ = self._outputs(X).argmax(-1).numpy()
        chosen: Array = self.classes_[numbers_]
        return chosen

    def _encode_targets(self, y: Array) -> Tensor:
        check_classification_targets(y)
        self.classes_, labels = np.unique(y, return_inverse=True)
        if len(self.classes_) < 2:
            (found,) = self.classes_.tolist()
            raise ValueError(f"Expected two or more classes in y; found one class, {found!r}. Add samples of another.")
        return torch.from_numpy(labels.astype(np.int64))

    def _class_names(self) -> tuple[str, ...]:
        return tuple(map(str, self.classes_))


class DomainRegressor(RegressorMixin, _DomainEstimator):  # type: ignore[misc]
    __doc__ = f"""Regressor that learns from several domains and is used on new ones, for scikit-learn; squared error.
{PARAMETERS}
    Attributes:
        domains_: Names of the training domains.
        model_: The trained module, with its preprocessing.
        best_step_: Number of the minibatch after which the weights were kept.
        validation_score_: Negative root mean squared error on the validation samples at this step, the mean over
            domains.
    """

    def predict(self, X: Any) -> npt.NDArray[np.float64]:
        """Return the predicted target of each sample [N]."""
        found: npt.NDArray[np.float64] = self._outputs(X).squeeze(-1).numpy()
        return found

    def _encode_targets(self, y: Array) -> Tensor:
        y = check_array(y, ensure_2d=False, dtype=np.float64)
        return torch.tensor(y).float()  # a copy: those of pandas cannot be written to


def _predicting_tensors(session: Session) -> dict[str, Tensor]:
    """Return a copy of the weights and buffers that predict."""
    return {name: leaf.detach().cpu().clone() for name, leaf in session.predicting_tensors().items()}


def _build(given: Any, find: Any, base: type, parameter: str) -> Any:
    """Return an algorithm or a modifier from its name or an instance."""
    if isinstance(given, str):
        return find(given)()
    if not isinstance(given, base):
        raise UsageError(
            f"Expected the name or an instance of a pogm {base.__name__} as {parameter}; found {given!r}. "
            'For example: "POGM", or POGM(kappa=0.2).'
        )
    return given


def _group_by_domain(
    domains: Any, count: int, algorithm: Algorithm, estimator: BaseEstimator
) -> tuple[tuple[str, ...], list[Tensor]]:
    """Return the names of the domains, sorted, and the rows of each."""
    if domains is None:
        if type(algorithm) is not ERM:
            raise UsageError(
                f"Expected the domain of each sample for {type(algorithm).__name__}; found none. Pass it to fit: "
                f"fit(X, y, domains=hospitals). In a pipeline or in cross_validate, call "
                f"{type(estimator).__name__}(...).set_fit_request(domains=True) with "
                "sklearn.set_config(enable_metadata_routing=True), and pass params={'domains': hospitals}."
            )
        return ("all",), [torch.arange(count)]
    found = column_or_1d(_to_array(domains))
    if len(found) != count:
        raise UsageError(f"Expected one domain per sample, {count}; found {len(found)} in domains. Pass one for each.")
    is_missing = [value == "" or value != value for value in found.tolist()]  # as `_to_array` writes them
    if any(is_missing):
        raise UsageError(
            f"Expected the domain of each sample; found none for {sum(is_missing)} of {count} samples. Fill them in, "
            "or leave these samples out."
        )
    names, numbers_ = np.unique(found.astype(str), return_inverse=True)
    if len(names) < algorithm.min_domains:
        raise UsageError(
            f"Expected at least {algorithm.min_domains} domains for {type(algorithm).__name__}; found {len(names)}. "
            "Choose another algorithm."
        )
    return tuple(names.tolist()), [torch.from_numpy(np.flatnonzero(numbers_ == n)) for n in range(len(names))]


def _to_array(column: Any) -> Array:
    """Return a column of a data frame, or another array, as numbers or as texts; missing texts are empty."""
    values = np.asarray(column)
    if values.dtype.kind in "biuf":
        return values
    flat = [_to_plain(value) for value in np.asarray(column, dtype=object).ravel().tolist()]
    if all(isinstance(value, float | int) for value in flat):
        return np.array(flat, dtype=np.float64).reshape(values.shape)
    texts = ["" if isinstance(value, float) and value != value else str(value) for value in flat]
    return np.array(texts, dtype=str).reshape(values.shape)


def _to_plain(value: Any) -> Any:
    """Return NaN for None and other missing values."""
    is_missing = value is None or type(value).__name__ in ("NAType", "NaTType") or value != value
    return float("nan") if is_missing else value


def _split(inputs: Tensor, targets: Tensor, fraction: float, random: np.random.RandomState) -> Domain:
    """Return a domain with a random validation split; a domain that is too small is used for both."""
    count = len(targets)
    held_out = round(count * fraction)
    if held_out == 0 or held_out == count:
        copies = 1 if fraction == 0 else count  # without validation, the engine needs one sample
        splits = torch.cat([torch.full((count,), TRAIN), torch.full((copies,), VAL)])
        return Domain(torch.cat([inputs, inputs[:copies]]), torch.cat([targets, targets[:copies]]), splits=splits)
    splits = torch.full((count,), TRAIN)
    splits[torch.from_numpy(random.permutation(count)[:held_out])] = VAL
    return Domain(inputs, targets, splits=splits)


def _validation_score(scores: Mapping[str, Sequence[float]]) -> float:
    """Return the mean over domains of the accuracy, or of the negative root mean squared error, on the *out* splits."""
    if "accuracy" in scores:
        return float(np.mean(scores["accuracy"][1::2]))
    return -float(np.mean(scores["rmse"][1::2]))
