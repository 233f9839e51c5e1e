"""Functions that torch's compiler may fuse into a few kernels, where the engine asks for it.

What is marked is what pays: the network's passes, the optimizer, keys and minibatches, the solver, the move of the
shared model. The rest of a step stays as it is written. Numbers change by rounding alone.
"""

import functools
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from pogm._system.determinism import nondeterministic_operation
from pogm._system.errors import UsageError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

RECOMPILATIONS = 1024  # of one function in one process: a worker meets many networks, shapes and modes
_active = ContextVar("fusing", default=False)  # a thread that prepares data on the host has a context of its own


class CompileWarning(UserWarning):
    """The compiler failed on a function, which runs as it is."""


@contextmanager
def compiling(wanted: bool) -> Iterator[None]:
    """Let marked functions be compiled, or not, for a while."""
    before = _active.set(wanted)
    try:
        yield
    finally:
        _active.reset(before)


def inside_transform() -> bool:
    """Whether a tensor may stand for many (under ``vmap``) or for none yet (while compiling)."""
    return torch.compiler.is_compiling() or peek_interpreter_stack() is not None


def known_true(flags: Tensor) -> bool:
    """Whether all flags are set, where that can be known without waiting: on a CPU, outside of transforms."""
    return flags.device.type == "cpu" and not inside_transform() and bool(flags.all())


def compiled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Mark a pure function of tensors: compiled on its first call where that is wanted, and as it is elsewhere.

    Numbers among its arguments become part of the code: pass those that differ between trials as tensors.
    """
    compiled: list[Callable[Arguments, Result]] = []  # empty before the first call, and after a failure
    failed: set[bool] = set()  # whether in deterministic mode; not the error: its frames hold on to tensors

    @functools.wraps(function)
    def call(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        if inside_transform() or not _active.get():  # in this order: torch 2.11 cannot trace the last
            return function(*args, **options)
        deterministic = torch.are_deterministic_algorithms_enabled()
        if deterministic in failed:
            return function(*args, **options)
        if not compiled:
            compiled.append(_compiled(function))
        try:
            with warnings.catch_warnings(action="ignore"):  # the compiler's, of its own code
                return compiled[0](*args, **options)
        except _compiler_errors() as error:
            if deterministic:
                _check_repeatable(function.__qualname__, error)
            failed.add(deterministic)
            reason = str(error).strip().splitlines()[0]
            text = f"{function.__qualname__} could not be compiled, and runs as it is: {reason}"
            warnings.warn(text, CompileWarning, stacklevel=2)
            return function(*args, **options)

    return call


def _check_repeatable(name: str, error: Exception) -> None:
    """Raise an error of the compiler that a deterministic run must not continue after.

    A failure that every process meets is harmless: the function runs as it is everywhere. The other two are not.
    """
    from torch._dynamo.exc import FailOnRecompileLimitHit

    if nondeterministic_operation(error) is not None:
        raise error
    if isinstance(error, FailOnRecompileLimitHit):  # depends on what this process did before
        raise UsageError(
            f"Expected to compile {name} for every new shape, for a deterministic run; found that this process has "
            f"reached the limit of {RECOMPILATIONS}. Resume the run in a new process, or pass --compile off."
        ) from error


def _compiled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    import torch._dynamo

    for limit in ("recompile_limit", "accumulated_recompile_limit"):
        setattr(torch._dynamo.config, limit, max(getattr(torch._dynamo.config, limit), RECOMPILATIONS))
    return torch.compile(function, dynamic=False, fullgraph=True)


def _compiler_errors() -> tuple[type[Exception], ...]:
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
    from torch._inductor.exc import InductorError

    return TorchDynamoException, FailOnRecompileLimitHit, InductorError
