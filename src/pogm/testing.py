"""Contract tests of algorithms and modifiers, for pogm and for other packages.

`check_algorithm` and `check_modifier` run all checks of a class and raise an AssertionError that lists those that fail.
The other functions make the small problems that the checks use; tests of a method can use them too.

Example:
    >>> from pogm import VREx
    >>> from pogm.testing import check_algorithm
    >>> check_algorithm(VREx)
"""

import dataclasses
import inspect
import re
import tempfile
import warnings
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import nn
from torch.func import vmap

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.algorithms.erm import ERM
from pogm.benchmark.plan.trial import Trial
from pogm.benchmark.runs.context import use_threads
from pogm.core import random, trees
from pogm.core.batch import Batch
from pogm.core.hyperparameters import fields
from pogm.core.model import Network
from pogm.core.problem import Problem, live_buffers
from pogm.core.state import State
from pogm.data.datasets import dataset_class
from pogm.diagnostics import Probe
from pogm.engine import checkpoint
from pogm.engine.per_domain import gradient, map_by_loop, map_by_vmap
from pogm.engine.session import Engine, Session
from pogm.engine.trainer import train
from pogm.modifiers.base import Modifier

DOMAINS, SAMPLES, CLASSES, INPUTS, WIDTH = 3, 8, 4, 6, 5  # sizes of the small problems
NETWORKS = ("mlp", "mnist_cnn")


def check_algorithm(cls: type[Algorithm], skip: Iterable[str] = ()) -> None:
    """Run all contract tests of an algorithm; about ten seconds on one core.

    Args:
        cls: The class, a frozen dataclass with a default for every field.
        skip: Names of checks to leave out, such as "check_learning". `ALGORITHM_CHECKS` lists them.

    Raises:
        AssertionError: If a check fails. The message lists all checks that fail, with the reasons.
    """
    checks = ALGORITHM_CHECKS + (ALGORITHM_GPU_CHECKS if torch.cuda.is_available() else ())
    _run_checks(cls, checks, "algorithms", skip)


def check_modifier(cls: type[Modifier], skip: Iterable[str] = ()) -> None:
    """Run all contract tests of a modifier, combined with ERM; about ten seconds on one core.

    Args:
        cls: The class, a frozen dataclass with a default for every field.
        skip: Names of checks to leave out. `MODIFIER_CHECKS` lists them.

    Raises:
        AssertionError: If a check fails. The message lists all checks that fail, with the reasons.
    """
    _run_checks(cls, MODIFIER_CHECKS, "modifiers", skip)


def _run_checks(cls: Any, checks: Sequence[Callable[[Any], None]], kind: str, skip: Iterable[str]) -> None:
    skipped = set(skip)
    if unknown := skipped - {check.__name__ for check in checks}:
        raise UsageError(
            f"Expected names of checks of {kind} to skip; found {', '.join(sorted(unknown))}. Choose from: "
            f"{', '.join(check.__name__ for check in checks)}."
        )
    failures: list[str] = []
    first: Exception | None = None
    for check in checks:
        if check.__name__ in skipped:
            continue
        try:
            with use_threads(1):  # threads make small operations slower, most of all beside other processes
                check(cls)
        except Exception as error:
            first = first or error
            found = str(error) if isinstance(error, AssertionError) else f"{type(error).__name__}: {error}"
            text = found.strip().replace("\n", "\n    ")
            failures.append(f"{check.__name__}: {(check.__doc__ or '').splitlines()[0]}\n    {text}")
    if failures:
        listed = "\n\n".join(failures)
        message = f"{cls.__name__} fails {len(failures)} of {len(checks)} contract tests of {kind}:\n\n{listed}"
        raise AssertionError(message) from first


# Small problems.


def make_problem(
    algorithm: Algorithm,
    *,
    lr: float = 0.05,
    weight_decay: float = 0.0,
    domains: int = DOMAINS,
    each_domain: Any = map_by_loop,
    batch_norm: bool = False,
    seed: int = 0,
) -> tuple[State, Problem]:
    """Return a state and a problem in float64: a small network with random weights, 6 inputs and 4 classes."""
    torch.manual_seed(seed)
    norm = [nn.BatchNorm1d(WIDTH)] if batch_norm else []

    def make(shape: tuple[int, ...]) -> tuple[nn.Module, int]:
        return nn.Sequential(nn.Linear(shape[0], WIDTH), *norm, nn.Tanh()), WIDTH

    features, width = algorithm.featurizer(make, (INPUTS,))
    network: Network = algorithm.build(features, width, CLASSES, domains).double().train()
    problem = Problem(
        network=network.requires_grad_(False),
        optimizer=algorithm.optimizer(lr, weight_decay),
        num_domains=domains,
        num_classes=CLASSES,
        gradient=gradient,
        each_domain=each_domain,
        live=live_buffers(network),
    )
    params = {name: leaf.detach().clone() for name, leaf in network.named_parameters()}
    buffers = {name: leaf.clone() for name, leaf in network.named_buffers()}
    return algorithm.start(params, buffers, random.key(seed), problem), problem


def make_batches(count: int = 1, *, domains: int = DOMAINS, size: int = SAMPLES, seed: int = 0) -> list[Batch]:
    """Return random minibatches; each domain has its own mean, so that gradients differ."""
    generator = torch.Generator().manual_seed(seed)
    made = []
    for _ in range(count):
        shift = torch.arange(domains, dtype=torch.float64).reshape(-1, 1, 1)
        x = torch.randn(domains, size, INPUTS, generator=generator, dtype=torch.float64) + shift
        made.append(Batch(x, torch.randint(CLASSES, (domains, size), generator=generator)))
    return made


def take_steps(algorithm: Algorithm, count: int, *, seed: int = 0, **options: Any) -> State:
    """Return the state after some steps on the problem of `make_problem`, which gets the options."""
    state, problem = make_problem(algorithm, seed=seed, **options)
    domains = options.get("domains", DOMAINS)
    for number in range(count):
        made = make_batches(algorithm.minibatches, domains=domains, seed=seed * 1000 + number)
        with torch.no_grad():
            state, _ = algorithm.step(state, made, problem)
    return state


def make_trial(algorithm: Algorithm, dataset: str = "RotatedDigits", **options: Any) -> Trial:
    """Return a trial of 21 steps on data that come with the package; options are fields of the trial."""
    known = dataset_class(dataset)()
    defaults: dict[str, Any] = {
        "test_domains": (0,),
        "training": known.training,
        "steps": 21,
        "evaluate_every": 10,
    }
    return Trial(dataset=known, algorithm=algorithm, **defaults | options)


def assert_close(left: trees.Tree, right: trees.Tree, tolerance: float = 1e-10) -> None:
    """Raise an AssertionError unless two trees have the same leaves, up to rounding."""
    mine, theirs = dict(trees.named_leaves(left)), dict(trees.named_leaves(right))
    _expect(mine.keys() == theirs.keys(), f"Expected the leaves {sorted(theirs)}; found {sorted(mine)}.")
    for name, leaf in mine.items():
        try:
            torch.testing.assert_close(leaf, theirs[name], rtol=tolerance, atol=tolerance)
        except AssertionError as error:
            raise AssertionError(f"{name}: {error}") from None


@contextmanager
def no_synchronisation() -> Iterator[None]:
    """Make every wait of the host for the GPU an error."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch says that the mode is a prototype
        torch.cuda.set_sync_debug_mode("error")
    try:
        yield
    finally:
        torch.cuda.set_sync_debug_mode("default")


def start_schedules(cls: type[Algorithm], at: int = 2) -> Algorithm:
    """Return the algorithm with every schedule starting at a step, so that a few steps reach all phases."""
    return cls(**{field.name: at for field in fields(cls) if field.name.endswith("anneal_iters")})


# Checks of classes: algorithms and modifiers.


def check_docstring(cls: type[Algorithm]) -> None:
    """The docstring has the paper, in parentheses in the first line, and the equation."""
    first = (cls.__doc__ or "").strip().partition("\n")[0]
    _expect("(" in first, f"Expected the paper in parentheses in the first line of the docstring; found {first!r}.")
    _expect(".. math::" in (cls.__doc__ or ""), "Expected an equation in the docstring, after '.. math::'; found none.")


def check_descriptions(cls: type[Algorithm] | type[Modifier]) -> None:
    """Every hyperparameter is described, under ``Args:`` in the docstring or in a comment after the field."""
    classes = [base for base in cls.__mro__ if issubclass(base, Algorithm | Modifier)]
    docstrings = "\n".join(base.__doc__ or "" for base in classes)
    sources = "\n".join(inspect.getsource(base) for base in classes)
    for field in fields(cls):
        described = re.search(rf"^ +{field.name}: \w", docstrings, re.MULTILINE)
        commented = re.search(rf"^    {field.name}: \w+ = hyper\([^#]*?\)\s+# \S", sources, re.MULTILINE)
        _expect(described or commented, f"Describe {field.name} under Args: in the docstring of {cls.__name__}.")


def check_search_space(cls: type[Algorithm] | type[Modifier]) -> None:
    """Every draw from the search spaces of the fields is a valid configuration."""
    for seed in range(50):
        source = np.random.RandomState(seed)
        cls(**{f.name: f.metadata["space"].draw(source) for f in fields(cls) if f.metadata.get("space")})


def check_presets(cls: type[Algorithm]) -> None:
    """Every preset is valid."""
    for name in cls.presets:
        cls.preset(name)


# Checks of one step of an algorithm.


def check_loop_and_vmap(cls: type[Algorithm]) -> None:
    """Work on domains in a loop and under vmap gives the same result."""
    loop = take_steps(start_schedules(cls), 4, each_domain=map_by_loop)
    assert_close(loop, take_steps(start_schedules(cls), 4, each_domain=map_by_vmap))


def check_step(cls: type[Algorithm]) -> None:
    """A step changes the weights, adds 1 to the step, returns a finite loss and leaves its inputs unchanged."""
    algorithm = start_schedules(cls)
    state, problem = make_problem(algorithm)
    made = make_batches(algorithm.minibatches)
    before = trees.map_leaves(torch.clone, state)
    after, metrics = algorithm.step(state, made, problem)
    assert_close(state, before, 0.0)
    _expect(_has_changed(state, after), "Expected a step to change the weights; found the same weights.")
    _expect("loss" in metrics, f"Expected the metric 'loss' of a step; found {sorted(metrics)}.")
    _expect(torch.isfinite(metrics["loss"]), f"Expected a finite loss; found {metrics['loss']}.")
    _expect(after.step == state.step + 1, f"Expected the step {int(state.step) + 1}; found {int(after.step)}.")


def check_shapes(cls: type[Algorithm]) -> None:
    """A step keeps the shapes and dtypes of the state, so that it can be captured, stacked over trials and saved."""
    algorithm = start_schedules(cls)
    state, problem = make_problem(algorithm)
    after, _ = algorithm.step(state, make_batches(algorithm.minibatches), problem)
    before, found = (
        {name: f"{list(leaf.shape)} {leaf.dtype}" for name, leaf in trees.named_leaves(each)} for each in (state, after)
    )
    changed = {name: value for name, value in found.items() if before.get(name) != value}
    changed |= dict.fromkeys(before.keys() - found.keys(), "missing")
    _expect(not changed, f"Expected the shapes and dtypes that `start` returned; found {changed}.")


def check_repeatability(cls: type[Algorithm]) -> None:
    """The same steps give the same bits, whatever the state of torch's random generator is."""
    algorithm = start_schedules(cls)
    ends = []
    for seed in (0, 1):
        state, problem = make_problem(algorithm)
        torch.manual_seed(seed)
        for number in range(3):
            state, _ = algorithm.step(state, make_batches(algorithm.minibatches, seed=number), problem)
        ends.append(state)
    assert_close(ends[1], ends[0], 0.0)


def check_vmap(cls: type[Algorithm]) -> None:
    """A step works under vmap over trials."""
    algorithm = start_schedules(cls)
    state, problem = make_problem(algorithm)
    made = make_batches(algorithm.minibatches)

    def step(state: State) -> State:
        return algorithm.step(state, made, problem)[0]

    mapped = vmap(step)(trees.stack([state, state]))
    assert_close(trees.index(mapped, 1), step(state))


def check_one_domain(cls: type[Algorithm]) -> None:
    """The algorithm works with one training domain, or says in ``min_domains`` that it does not."""
    if cls.min_domains > 1:
        try:
            make_trial(cls(), test_domains=(0, 1, 2, 3, 4))
        except UsageError as error:
            expected = f"at least {cls.min_domains} training domains for {cls.__name__}"
            _expect(expected in str(error), f"Expected an error with {expected!r}; found {str(error)!r}.")
            return
        raise AssertionError("Expected an error for one training domain; found none.")
    state, _ = make_problem(start_schedules(cls), domains=1)
    after = take_steps(start_schedules(cls), 4, domains=1)
    _expect(trees.all_finite(after.params), "Expected finite weights after 4 steps on one domain; found others.")
    _expect(_has_changed(state, after), "Expected steps on one domain to change the weights; found the same weights.")


def check_batch_norm(cls: type[Algorithm]) -> None:
    """A step updates the running statistics of batch norm."""
    algorithm = start_schedules(cls)
    state, problem = make_problem(algorithm, batch_norm=True)
    after, _ = algorithm.step(state, make_batches(algorithm.minibatches), problem)
    name = next(name for name in problem.live if name.endswith("running_mean"))
    changed = not torch.equal(after.buffers[name], state.buffers[name])
    _expect(changed, "Expected a step to change the running statistics; found the same. Return Loss.buffers.")
    mapped = take_steps(algorithm, 2, batch_norm=True, each_domain=map_by_vmap)
    # The gradient of a bias before batch norm is rounding error, which Adam amplifies.
    assert_close(mapped, take_steps(algorithm, 2, batch_norm=True), 1e-7)


# Checks of runs.


def make_two_trials(cls: type[Algorithm], network: str, weight_decay: float = 1e-3) -> list[Trial]:
    """Return two trials that differ in seed, data, split, test domain and every hyperparameter that is a float."""
    floats = [f.name for f in fields(cls) if isinstance(f.default, float)]
    other = dataclasses.replace(start_schedules(cls), **{name: getattr(cls(), name) / 1.1 for name in floats})
    held_out = ((0,), (3,)) if network == "mlp" else ((0, 1, 2), (3, 4, 5))  # fewer domains for the slower network
    first = make_trial(start_schedules(cls), precision="fp64", test_domains=held_out[0], probe=Probe(every=3, lag=3))
    small = dataclasses.replace(first.training, network=network, batch_size=4)
    second: dict[str, Any] = {"seed": 1, "data_seed": 1, "trial_seed": 1, "test_domains": held_out[1]}
    training = dataclasses.replace(small, lr=1e-3, weight_decay=weight_decay)
    return [
        dataclasses.replace(first, training=small),
        dataclasses.replace(first, training=training, algorithm=other, **second),
    ]


def check_batched_trials(cls: type[Algorithm], networks: Sequence[str] = NETWORKS, weight_decay: float = 1e-3) -> None:
    """Trials in a batch give the same result as single trials."""
    for network in networks:
        trials = make_two_trials(cls, network, weight_decay)
        batched = Session([trial.task(None) for trial in trials], Engine())
        single = [Session([trial.task(None)], Engine()) for trial in trials]
        for number in range(4):
            for session in (batched, *single):
                session.step(probing=number % 3 == 0)
        for row, session in enumerate(single):
            assert_close(trees.index(batched.train_state, row), session.train_state, 1e-8)
        if network == "mlp":
            found, expected = batched.accuracies(), [session.accuracies()[0] for session in single]
            _expect(found == expected, f"Expected the accuracies of single trials, {expected}; found {found}.")


def check_loop_and_vmap_in_runs(cls: type[Algorithm], networks: Sequence[str] = NETWORKS) -> None:
    """Domains in a loop and under vmap give the same result in a run."""
    for network in networks:
        task = make_two_trials(cls, network)[0].task(None)
        loop, mapped = (Session([task], Engine(domains=domains)) for domains in ("loop", "vmap"))
        for session in (loop, mapped):
            for _ in range(2):
                session.step(probing=True)
        assert_close(loop.train_state, mapped.train_state, 1e-8)


def check_resume(cls: type[Algorithm]) -> None:
    """A run that is saved and loaded continues with the same bits; the checkpoint includes the memory."""
    task = make_two_trials(cls, "mlp")[0].task(None)
    whole, first, second = (Session([task], Engine()) for _ in range(3))
    for number in range(7):
        whole.step(probing=number % 2 == 0)
    for number in range(4):
        first.step(probing=number % 2 == 0)
    second.train_state = _save_and_load(first, second)
    for number in range(4, 7):
        second.step(probing=number % 2 == 0)
    assert_close(second.train_state, whole.train_state, 0.0)


def check_learning(cls: type[Algorithm]) -> None:
    """The accuracy on an unseen domain with ten classes is above 50% after 101 steps.

    Schedules start late, because some penalties with full weight from the start have their minimum at constant outputs.
    """
    trial = make_trial(start_schedules(cls, at=80), steps=101, evaluate_every=100, test_domains=(2,))
    evaluations = [found for found in train(Session([trial.task(None)], Engine()), trial.schedule) if found]
    accuracy = evaluations[-1].accuracies[0][2 * 2]
    _expect(accuracy > 0.5, f"Expected an accuracy above 50%; found {accuracy:.0%}.")


def check_no_synchronisation(cls: type[Algorithm], networks: Sequence[str] = NETWORKS) -> None:
    """A step on a GPU does not make the host wait."""
    for network in networks:
        session = Session([make_two_trials(cls, network)[0].task(None)], Engine("cuda", capture=False))
        for _ in range(2):
            session.step(probing=True)
        with no_synchronisation():
            session.step(probing=True)


def check_captured_steps(
    cls: type[Algorithm],
    networks: Sequence[str] = NETWORKS,
    counts: Sequence[int] = (1, 2),
    weight_decay: float = 1e-3,
) -> None:
    """Captured steps on a GPU equal steps on the CPU, for one trial and for two."""
    for network in networks:
        for count in counts:
            trials = make_two_trials(cls, network, weight_decay)[:count]
            captured = Session([trial.task(None) for trial in trials], Engine("cuda"))
            plain = [Session([trial.task(None)], Engine("cpu")) for trial in trials]
            for number in range(7):
                for session in (captured, *plain):
                    session.step(probing=number % 2 == 0)
            for row, session in enumerate(plain):
                one = trees.index(captured.train_state, row) if count > 1 else captured.train_state
                assert_close(trees.map_leaves(torch.Tensor.cpu, one), session.train_state, 1e-7)


# Checks of modifiers.


def make_modified_trial(
    algorithm: Algorithm, *modifiers: Modifier, network: str = "mnist_cnn", **options: Any
) -> Trial:
    """Return a trial with modifiers and small minibatches, in float64."""
    made = make_trial(algorithm, precision="fp64", modifiers=modifiers, **options)
    training = dataclasses.replace(made.training, network=network, batch_size=4, weight_decay=1e-2)
    return dataclasses.replace(made, training=training)


def check_modifier_effect(cls: type[Modifier]) -> None:
    """A run with the modifier works, gives the same bits again, and differs from one without in training or results."""
    with_modifier, again = (_session(make_modified_trial(ERM(), cls())) for _ in range(2))
    for session in (with_modifier, again):
        for _ in range(3):
            session.step()
    assert_close(with_modifier.train_state, again.train_state, 0.0)
    finite = trees.all_finite(with_modifier.train_state.state.params)
    _expect(finite, "Expected finite weights after 3 steps; found others.")
    hooks = [name for name, value in vars(Modifier).items() if callable(value) and not name.startswith("_")]
    changed = [name for name in hooks if getattr(cls, name, None) is not getattr(Modifier, name)]
    _expect(changed, f"Expected a modifier to override a hook ({', '.join(hooks)}); found none.")


def check_modifier_batched_trials(cls: type[Modifier]) -> None:
    """Trials in a batch, with different values of every float, give the same result as single trials."""
    assert_batched_equals_single(ERM(), cls())


def check_modifier_loop_and_vmap(cls: type[Modifier]) -> None:
    """Domains in a loop and under vmap give the same result."""
    assert_domains_by_vmap_equal_a_loop(ERM(), cls())


def check_modifier_resume(cls: type[Modifier]) -> None:
    """A run that is saved and loaded continues with the same bits; the checkpoint includes the memory."""
    assert_resumes(ERM(), cls())


def assert_batched_equals_single(
    algorithm: Algorithm, *modifiers: Modifier, evaluated: bool = False, **options: Any
) -> None:
    """Check that batched trials equal single trials; they differ in seeds, test domain, rates and all floats."""
    first = make_modified_trial(algorithm, *modifiers, **options)
    training = dataclasses.replace(first.training, lr=2e-3, weight_decay=1e-3)
    second: dict[str, Any] = {"seed": 1, "data_seed": 1, "trial_seed": 1, "test_domains": (3,)}
    others = tuple(_smaller(modifier) for modifier in modifiers)
    trials = [first, dataclasses.replace(first, training=training, modifiers=others, **second)]
    together = Session([trial.task(None) for trial in trials], Engine())
    apart = [_session(trial) for trial in trials]
    for _ in range(2):
        for each in (together, *apart):
            each.step()
    for row, each in enumerate(apart):
        assert_close(trees.index(together.train_state, row), each.train_state, 1e-8)
    if evaluated:
        found, expected = together.accuracies(), [each.accuracies()[0] for each in apart]
        _expect(found == expected, f"Expected the accuracies of single trials, {expected}; found {found}.")


def assert_domains_by_vmap_equal_a_loop(algorithm: Algorithm, *modifiers: Modifier, **options: Any) -> None:
    """Check that domains in a loop and under vmap give the same result after two steps."""
    made = make_modified_trial(algorithm, *modifiers, **options)
    loop, mapped = (_session(made, domains=domains) for domains in ("loop", "vmap"))
    for each in (loop, mapped):
        each.step()
        each.step()
    assert_close(loop.train_state, mapped.train_state, 1e-8)


def assert_resumes(algorithm: Algorithm, *modifiers: Modifier, **options: Any) -> None:
    """Check that a run that is saved after two of four steps and loaded ends with the same bits."""
    made = make_modified_trial(algorithm, *modifiers, **options)
    whole, first, second = (_session(made) for _ in range(3))
    for _ in range(4):
        whole.step()
    for _ in range(2):
        first.step()
    second.train_state = _save_and_load(first, second)
    for _ in range(2):
        second.step()
    assert_close(second.train_state, whole.train_state, 0.0)


ALGORITHM_CHECKS: tuple[Callable[[type[Algorithm]], None], ...] = (
    check_docstring,
    check_descriptions,
    check_search_space,
    check_presets,
    check_step,
    check_shapes,
    check_repeatability,
    check_loop_and_vmap,
    check_vmap,
    check_one_domain,
    check_batch_norm,
    check_batched_trials,
    check_loop_and_vmap_in_runs,
    check_resume,
    check_learning,
)
ALGORITHM_GPU_CHECKS: tuple[Callable[[type[Algorithm]], None], ...] = (check_no_synchronisation, check_captured_steps)
MODIFIER_CHECKS: tuple[Callable[[type[Modifier]], None], ...] = (
    check_descriptions,
    check_search_space,
    check_modifier_effect,
    check_modifier_batched_trials,
    check_modifier_loop_and_vmap,
    check_modifier_resume,
)


def _expect(condition: Any, message: str) -> None:
    if not condition:
        raise AssertionError(message)


def _has_changed(before: State, after: State) -> bool:
    return any(not torch.equal(after.params[name], leaf) for name, leaf in before.params.items())


def _session(trial: Trial, **options: Any) -> Session:
    return Session([trial.task(None)], Engine(**options))


def _smaller(modifier: Modifier) -> Modifier:
    floats = [field.name for field in fields(modifier) if isinstance(field.default, float)]
    return dataclasses.replace(modifier, **{name: getattr(modifier, name) / 1.5 for name in floats})


def _save_and_load(saved: Session, template: Session) -> Any:
    """Return the state of a session after it was written to a checkpoint and read again."""
    with tempfile.TemporaryDirectory() as folder:
        checkpoint.save(Path(folder) / "c", saved.train_state, trial="t", after=0)
        loaded = checkpoint.load(Path(folder) / "c", template.train_state, "t")
    _expect(loaded is not None, "Expected a checkpoint that can be loaded; found none.")
    return loaded[0] if loaded else None
