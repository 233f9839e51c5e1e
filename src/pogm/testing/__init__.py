"""Contract tests of algorithms and modifiers, for pogm and for other packages.

`check_algorithm` and `check_modifier` run all checks of a class and raise an AssertionError that lists those that fail.
`problems` makes the small problems that the checks use; tests of a method can use them too.

Example:
    >>> from pogm import VREx
    >>> from pogm.testing import check_algorithm
    >>> check_algorithm(VREx)
"""

from collections.abc import Callable, Iterable, Sequence
from typing import Any

import torch

from pogm._system.errors import UsageError
from pogm.algorithms.base import Algorithm
from pogm.benchmark.runs.context import use_threads
from pogm.modifiers.base import Modifier
from pogm.testing.algorithms import ALGORITHM_CHECKS as ALGORITHM_CHECKS
from pogm.testing.algorithms import ALGORITHM_GPU_CHECKS as ALGORITHM_GPU_CHECKS
from pogm.testing.algorithms import NETWORKS as NETWORKS
from pogm.testing.algorithms import check_batch_norm as check_batch_norm
from pogm.testing.algorithms import check_batched_trials as check_batched_trials
from pogm.testing.algorithms import check_captured_steps as check_captured_steps
from pogm.testing.algorithms import check_learning as check_learning
from pogm.testing.algorithms import check_loop_and_vmap as check_loop_and_vmap
from pogm.testing.algorithms import check_loop_and_vmap_in_runs as check_loop_and_vmap_in_runs
from pogm.testing.algorithms import check_no_synchronisation as check_no_synchronisation
from pogm.testing.algorithms import check_one_domain as check_one_domain
from pogm.testing.algorithms import check_repeatability as check_repeatability
from pogm.testing.algorithms import check_resume as check_resume
from pogm.testing.algorithms import check_shapes as check_shapes
from pogm.testing.algorithms import check_step as check_step
from pogm.testing.algorithms import check_vmap as check_vmap
from pogm.testing.algorithms import make_two_trials as make_two_trials
from pogm.testing.classes import check_descriptions as check_descriptions
from pogm.testing.classes import check_docstring as check_docstring
from pogm.testing.classes import check_presets as check_presets
from pogm.testing.classes import check_search_space as check_search_space
from pogm.testing.modifiers import MODIFIER_CHECKS as MODIFIER_CHECKS
from pogm.testing.modifiers import assert_batched_equals_single as assert_batched_equals_single
from pogm.testing.modifiers import assert_domains_by_vmap_equal_a_loop as assert_domains_by_vmap_equal_a_loop
from pogm.testing.modifiers import assert_resumes as assert_resumes
from pogm.testing.modifiers import check_modifier_batched_trials as check_modifier_batched_trials
from pogm.testing.modifiers import check_modifier_effect as check_modifier_effect
from pogm.testing.modifiers import check_modifier_loop_and_vmap as check_modifier_loop_and_vmap
from pogm.testing.modifiers import check_modifier_resume as check_modifier_resume
from pogm.testing.modifiers import make_modified_trial as make_modified_trial
from pogm.testing.problems import CLASSES as CLASSES
from pogm.testing.problems import DOMAINS as DOMAINS
from pogm.testing.problems import INPUTS as INPUTS
from pogm.testing.problems import SAMPLES as SAMPLES
from pogm.testing.problems import WIDTH as WIDTH
from pogm.testing.problems import assert_close as assert_close
from pogm.testing.problems import make_batches as make_batches
from pogm.testing.problems import make_problem as make_problem
from pogm.testing.problems import make_trial as make_trial
from pogm.testing.problems import no_synchronisation as no_synchronisation
from pogm.testing.problems import start_schedules as start_schedules
from pogm.testing.problems import take_steps as take_steps


def check_algorithm(cls: type[Algorithm], skip: Iterable[str] = ()) -> None:
    """Run all contract tests of an algorithm; about ten seconds on one core.

    Args:
        cls: The class, a frozen dataclass with a default for every field.
        skip: Names of checks to leave out, such as "check_learning": `ALGORITHM_CHECKS` and
            `ALGORITHM_GPU_CHECKS` list them.

    Raises:
        AssertionError: If a check fails. The message lists all checks that fail, with the reasons.
    """
    skipped = [*skip]
    if not torch.cuda.is_available():
        skipped += [check.__name__ for check in ALGORITHM_GPU_CHECKS]
    _run_checks(cls, ALGORITHM_CHECKS + ALGORITHM_GPU_CHECKS, "algorithms", skipped)


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
    chosen = [check for check in checks if check.__name__ not in skipped]
    failures: list[str] = []
    first: Exception | None = None
    for check in chosen:
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
        message = f"{cls.__name__} fails {len(failures)} of {len(chosen)} contract tests of {kind}:\n\n{listed}"
        raise AssertionError(message) from first
