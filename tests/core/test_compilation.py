"""Marked functions: plain by default, compiled where that is wanted, and never worse than slower."""

import shutil
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
import torch._dynamo
from torch.func import vmap

from pogm.core import compilation
from pogm.core.compilation import CompileWarning, compiled, compiling


def counted():
    """A marked function, and how often Python has run its body."""
    runs = []

    @compiled
    def function(x, factor):
        runs.append(torch.compiler.is_compiling())
        return (x * factor).sin().sum()

    return function, runs


X = torch.linspace(0, 1, 20, dtype=torch.float64)
EXPECTED = (X * 2).sin().sum()


@pytest.fixture(scope="module")
def real():
    """A function that the compiler has compiled, and its first result: once for all tests."""
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        pytest.skip("torch needs a C++ compiler to compile for a CPU")

    @compiled
    def function(x, factor):
        return (x * factor).sin().sum(), torch.compiler.is_compiling()

    with compiling(True):
        return function, function(X, 2.0)


def test_by_default_a_marked_function_runs_as_it_is():
    function, runs = counted()
    assert torch.equal(function(X, 2.0), EXPECTED)
    with compiling(False):
        function(X, 2.0)
    assert runs == [False, False]


def test_where_it_is_wanted_it_is_compiled_and_agrees_to_rounding(real):
    function, (result, compiled) = real
    assert compiled
    torch.testing.assert_close(result, EXPECTED)
    assert not function(X, 2.0)[1], "afterwards it is plain again"


def test_other_numbers_and_shapes_are_compiled_anew_not_taken_for_the_first(real):
    function, _ = real
    with compiling(True):
        torch.testing.assert_close(function(X, 3.0)[0], (X * 3).sin().sum())
        torch.testing.assert_close(function(X[:7], 2.0)[0], (X[:7] * 2).sin().sum())


def test_one_marked_function_is_compiled_with_those_it_calls(real):
    function, _ = real

    @compiled
    def twice(x):
        return function(x, 2.0)[0] + function(x, 3.0)[0]

    with compiling(True):
        torch.testing.assert_close(twice(X), EXPECTED + (X * 3).sin().sum())


def test_inside_a_transform_it_stays_plain():
    function, runs = counted()
    with compiling(True):
        mapped = vmap(lambda x: function(x, 2.0))(torch.stack([X, 2 * X]))
    assert runs == [False]
    torch.testing.assert_close(mapped[0], EXPECTED)


def test_wanting_it_ends_where_it_was_asked_for_even_after_an_error():
    def asked():
        with compiling(True):
            with compiling(False):
                assert not compilation._active.get()
            assert compilation._active.get()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        asked()
    assert not compilation._active.get()


def test_what_cannot_be_compiled_says_so_once_and_runs_as_it_is():
    @compiled
    def reads(x):
        return x * float(x.sum().item() > 0) if x.sum() > 0 else -x  # the value decides: no graph can say it

    with compiling(True):
        with pytest.warns(CompileWarning, match="reads could not be compiled, and runs as it is"):
            first = reads(X)
        second = reads(-X)  # a warning is an error here
    assert torch.equal(first, X)
    assert torch.equal(second, X)


def test_an_error_of_the_function_itself_is_not_hidden():
    @compiled
    def wrong(x):
        raise ValueError("expected something else")

    with pytest.raises(ValueError, match="something else"):
        wrong(X)


def test_a_thread_beside_the_step_computes_plainly():
    """What gathers the next images on the host must not wait for a compiler."""
    function, runs = counted()
    with compiling(True), ThreadPoolExecutor(1) as helper:
        helper.submit(function, X, 2.0).result()
    assert runs == [False]


def test_too_many_kinds_of_arguments_end_the_compiling_and_not_the_run(monkeypatch):
    """A worker of a sweep meets hundreds of batch sizes."""
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        pytest.skip("torch needs a C++ compiler to compile for a CPU")
    monkeypatch.setattr(compilation, "RECOMPILATIONS", 1)
    function, _ = counted()
    with torch._dynamo.config.patch(recompile_limit=1), compiling(True):
        function(X[:3], 2.0)
        with pytest.warns(CompileWarning):
            result = function(X[:4], 2.0)
        torch.testing.assert_close(result, (X[:4] * 2).sin().sum())
        function(X[:5], 2.0)
