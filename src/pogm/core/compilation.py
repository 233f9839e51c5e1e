"""Compile regions: functions that torch.compile may fuse into a few kernels, if the engine asks for it.

The decorator ``compiled`` marks the functions for which compilation pays off: passes of the network, the optimizer,
random keys and minibatches, the solver, and the update of the shared weights. The rest of a step runs eagerly.
Compilation changes results only by rounding.

Code is compiled for the shapes of its arguments. Inside ``compiling(True, dynamic=True)``, axes that were marked by
``any_length`` may have every length without a new compilation.
"""

import functools
import importlib
import math
import threading
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from contextvars import ContextVar
from typing import Any, ParamSpec, TypeVar

import torch
from torch import Tensor
from torch._C._functorch import peek_interpreter_stack

from pogm._system.determinism import nondeterministic_operation
from pogm._system.errors import UsageError

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

RECOMPILATIONS = 1024  # limit for one function in one process: a worker trains many networks, shapes and modes
_active = ContextVar("compiling", default=False)  # False in threads that prepare data: a thread has its own context
_dynamic = ContextVar("dynamic", default=False)


class CompileWarning(UserWarning):
    """Warning that a function could not be compiled and runs eagerly."""


@contextmanager
def compiling(enabled: bool, dynamic: bool = False) -> Iterator[None]:
    """Enable or disable the compilation of marked functions while the block runs.

    Args:
        enabled: Compile marked functions.
        dynamic: Compile for every length of the axes that ``any_length`` marks.
    """
    before = _active.set(enabled), _dynamic.set(dynamic)
    try:
        yield
    finally:
        _active.reset(before[0])
        _dynamic.reset(before[1])


def import_compiler() -> threading.Thread:
    """Begin to import torch's compiler in a thread, and return it: the import takes seconds, in which data can load."""

    def import_in_thread() -> None:
        with suppress(Exception):  # the first compilation imports it again, and reports the error
            importlib.import_module("torch._inductor.compile_fx")

    importlib.import_module("torch._dynamo")  # not in the thread: other modules of a set-up may import it, too
    thread = threading.Thread(target=import_in_thread)
    thread.start()
    return thread


def is_compiling_enabled() -> bool:
    """Return True inside ``compiling(True)``, in the thread that entered the block."""
    return _active.get()


def any_length(tensor: Tensor, axis: int) -> Tensor:
    """Mark an axis of a tensor, so that compiled functions accept every length of it, and return the tensor.

    This has an effect only inside ``compiling(True, dynamic=True)``.
    """
    if not inside_transform() and _active.get() and _dynamic.get():
        import torch._dynamo

        torch._dynamo.maybe_mark_dynamic(tensor, axis)
    return tensor


@contextmanager
def ignore_compiler_warnings() -> Iterator[None]:
    """Ignore warnings of a backward pass that may have to be compiled: the compiler warns about its own code."""
    if _active.get():
        with warnings.catch_warnings(action="ignore"):
            yield
    else:
        yield


def inside_transform() -> bool:
    """Return True under a functorch transform such as ``vmap``, or while torch.compile traces: values are not known."""
    return torch.compiler.is_compiling() or peek_interpreter_stack() is not None


def known_true(flags: Tensor) -> bool:
    """Return True if all flags are set and this is known without a synchronisation: on a CPU, outside transforms."""
    return flags.device.type == "cpu" and not inside_transform() and bool(flags.all())


def known_finite(numbers: Tensor) -> bool:
    """Return True if all numbers are finite and this is known without a synchronisation. For a few numbers."""
    known = numbers.device.type == "cpu" and not inside_transform()
    return known and all(map(math.isfinite, numbers.reshape(-1).tolist()))


def compiled(function: Callable[Arguments, Result]) -> Callable[Arguments, Result]:
    """Mark a pure function of tensors as a compile region.

    The function is compiled with its first call inside ``compiling(True)``. It runs eagerly outside of such a block,
    inside transforms, and after a failure of the compiler, which is reported by a CompileWarning. Python numbers among
    the arguments become constants of the compiled code: pass numbers that differ between trials as tensors.
    """
    cache: dict[bool, Callable[Arguments, Result]] = {}  # the compiled function, by whether axes may be dynamic
    failed: set[tuple[bool, bool]] = set()  # modes in which compilation failed; no errors: they hold tensors

    @functools.wraps(function)
    def call(*args: Arguments.args, **options: Arguments.kwargs) -> Result:
        if inside_transform() or not _active.get():  # in this order: torch 2.11 cannot trace the second
            return function(*args, **options)
        deterministic = torch.are_deterministic_algorithms_enabled()
        dynamic = _dynamic.get()
        if (deterministic, dynamic) in failed:
            return function(*args, **options)
        if dynamic not in cache:
            cache[dynamic] = _compile(function, dynamic)
        try:
            with warnings.catch_warnings(action="ignore"):  # the compiler warns about its own code
                return cache[dynamic](*args, **options)
        except _compiler_errors() as error:
            if deterministic:
                _check_repeatable(function.__qualname__, error)
            failed.add((deterministic, dynamic))
            reason = str(error).strip().splitlines()[0]
            text = f"{function.__qualname__} could not be compiled and runs eagerly: {reason}"
            warnings.warn(text, CompileWarning, stacklevel=2)
            return function(*args, **options)

    return call


def _check_repeatable(name: str, error: Exception) -> None:
    """Raise an error if a deterministic run must not continue after this error of the compiler.

    A failure that occurs in every process is harmless: the function then runs eagerly everywhere. A refused operation
    and the limit of recompilations, which depends on the history of the process, are not.
    """
    from torch._dynamo.exc import FailOnRecompileLimitHit

    if nondeterministic_operation(error) is not None:
        raise error
    if isinstance(error, FailOnRecompileLimitHit):
        raise UsageError(
            f"Expected to compile {name} for every new shape, for a deterministic run; found that this process has "
            f"reached the limit of {RECOMPILATIONS}. Resume the run in a new process, or pass --compile off."
        ) from error


def _compile(function: Callable[Arguments, Result], dynamic: bool) -> Callable[Arguments, Result]:
    import torch._dynamo

    for limit in ("recompile_limit", "accumulated_recompile_limit"):
        setattr(torch._dynamo.config, limit, max(getattr(torch._dynamo.config, limit), RECOMPILATIONS))
    if not dynamic:
        return torch.compile(function, dynamic=False, fullgraph=True)
    channels_last: dict[str, Any] = {"force_layout_optimization": True}  # the default only if no axis is dynamic
    code: Callable[Arguments, Result] = torch.compile(function, fullgraph=True, options=channels_last)
    only_marked_axes: Any = torch._dynamo.config.patch(automatic_dynamic_shapes=False)
    result: Callable[Arguments, Result] = only_marked_axes(code)
    return result


def _compiler_errors() -> tuple[type[Exception], ...]:
    from torch._dynamo.exc import FailOnRecompileLimitHit, TorchDynamoException
    from torch._inductor.exc import InductorError

    return TorchDynamoException, FailOnRecompileLimitHit, InductorError
