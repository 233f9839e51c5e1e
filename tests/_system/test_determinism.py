"""Deterministic mode: enabled, restored, and the operations that it refuses."""

import os
import shutil

import pytest
import torch
import torch.utils.deterministic

from pogm._system.determinism import (
    WORKSPACE,
    deterministic_algorithms,
    fix_cublas_workspace,
    nondeterministic_operation,
)
from pogm._system.errors import UsageError
from pogm.core import compilation
from pogm.core.compilation import CompileWarning, compiled, compiling

X = torch.linspace(0, 1, 20)
needs_compiler = pytest.mark.skipif(
    not any(map(shutil.which, ("g++", "c++", "clang++"))), reason="torch needs a C++ compiler to compile for a CPU"
)


def modes() -> tuple[object, ...]:
    """Return all settings that the mode changes."""
    import torch._inductor.config as inductor

    return (
        torch.are_deterministic_algorithms_enabled(),
        torch.is_deterministic_algorithms_warn_only_enabled(),
        torch.utils.deterministic.fill_uninitialized_memory,
        torch.backends.cudnn.deterministic,
        torch.backends.cudnn.benchmark,
        inductor.deterministic,
        inductor.triton.autotune_pointwise,
    )


def refused(x):
    """Run an operation that has no deterministic kernel on any device."""
    return x.clone().put_(torch.tensor([0, 1]), x[:2])


def test_mode_ends_with_its_block():
    before = modes()
    with deterministic_algorithms():
        assert modes() == (True, False, False, True, False, True, False)
    assert modes() == before


def test_mode_ends_after_an_error():
    before = modes()
    with pytest.raises(ZeroDivisionError), deterministic_algorithms():
        raise ZeroDivisionError
    assert modes() == before


def test_mode_of_the_user_is_restored():
    torch.use_deterministic_algorithms(True, warn_only=True)
    try:
        before = modes()
        with deterministic_algorithms():
            assert not torch.is_deterministic_algorithms_warn_only_enabled()
        assert modes() == before
    finally:
        torch.use_deterministic_algorithms(False)


def test_workspace_is_set_before_the_first_use_of_cuda(monkeypatch):
    monkeypatch.setenv(WORKSPACE, ":0:0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    fix_cublas_workspace()
    assert os.environ[WORKSPACE] == ":4096:8"


@pytest.mark.parametrize("found", [":4096:8", ":16:8"])
def test_workspace_of_fixed_size_is_kept(monkeypatch, found):
    monkeypatch.setenv(WORKSPACE, found)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    fix_cublas_workspace()
    assert os.environ[WORKSPACE] == found


def test_other_workspace_after_the_first_use_of_cuda_is_an_error(monkeypatch):
    monkeypatch.delenv(WORKSPACE, raising=False)
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    with pytest.raises(UsageError, match="found no value and CUDA in use"):
        fix_cublas_workspace()
    assert WORKSPACE not in os.environ


def test_refused_operation_is_named():
    with deterministic_algorithms(), pytest.raises(RuntimeError) as caught:
        refused(X)
    assert nondeterministic_operation(caught.value) == "put_"
    wrapped = RuntimeError("RuntimeError: kthvalue CUDA does not have a deterministic implementation, but you set ...")
    assert nondeterministic_operation(wrapped) == "kthvalue CUDA"
    assert nondeterministic_operation(RuntimeError("out of memory")) is None


@needs_compiler
def test_compiled_code_refuses_the_operation():
    opaque = torch.library.custom_op("pogm_tests::refused", refused, mutates_args=(), schema="(Tensor x) -> Tensor")
    opaque.register_fake(torch.empty_like)  # the compiler cannot replace it by a deterministic kernel

    @compiled
    def function(x):
        return opaque(x) * 2

    with compiling(True), deterministic_algorithms(), pytest.raises(RuntimeError) as caught:
        function(X)
    assert nondeterministic_operation(caught.value) == "put_"


def test_refused_operation_is_not_reported_as_a_failure_of_the_compiler(monkeypatch):
    from torch._dynamo.exc import TorchDynamoException

    def compile_now(function, dynamic):
        def call(x):
            raise TorchDynamoException("RuntimeError: put_ does not have a deterministic implementation")

        return call

    monkeypatch.setattr(compilation, "_compile", compile_now)
    function = compiled(lambda x: x)
    with compiling(True):
        with deterministic_algorithms(), pytest.raises(TorchDynamoException):
            function(X)
        with pytest.warns(CompileWarning):  # without the mode, this is a failure of the compiler
            function(X)


@needs_compiler
def test_too_many_recompilations_are_an_error_in_deterministic_mode(monkeypatch):
    monkeypatch.setattr(compilation, "RECOMPILATIONS", 1)

    @compiled
    def function(x):
        return x.sin().sum()

    with torch._dynamo.config.patch(recompile_limit=1), compiling(True), deterministic_algorithms():
        function(X[:3])
        with pytest.raises(UsageError, match="new process"):
            function(X[:4])


@needs_compiler
def test_compiler_failure_without_the_mode_does_not_affect_the_mode():
    runs = []

    @compiled
    def function(x):
        runs.append(torch.compiler.is_compiling())
        if torch.are_deterministic_algorithms_enabled():
            return x * x.sum()
        return x if x.sum() > 0 else -x  # control flow that depends on a value

    with compiling(True):
        with pytest.warns(CompileWarning):
            function(X)
        runs.clear()
        with deterministic_algorithms():
            function(X)
    assert runs == [True]
