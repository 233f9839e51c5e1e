"""Compile regions: eager by default, compiled on request, and eager again if the compiler fails."""

import shutil
import subprocess
import sys
import warnings
from concurrent.futures import ThreadPoolExecutor

import pytest
import torch
from torch.func import vmap

from pogm.core import compilation
from pogm.core.compilation import CompileWarning, any_length, compiled, compiling, ignore_compiler_warnings


def make_counted():
    """Return a marked function, and a list with one entry for every time that Python ran its body."""
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
    """A compiled function and its first result, compiled once for all tests."""
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        pytest.skip("torch needs a C++ compiler to compile for a CPU")

    @compiled
    def function(x, factor):
        return (x * factor).sin().sum(), torch.compiler.is_compiling()

    with compiling(True):
        return function, function(X, 2.0)


def test_marked_function_runs_eagerly_by_default():
    function, runs = make_counted()
    assert torch.equal(function(X, 2.0), EXPECTED)
    with compiling(False):
        function(X, 2.0)
    assert runs == [False, False]


def test_compiled_function_agrees_with_eager_function_up_to_rounding(real):
    function, (result, compiled) = real
    assert compiled
    torch.testing.assert_close(result, EXPECTED)
    assert not function(X, 2.0)[1], "outside of the block it runs eagerly"


def test_other_numbers_and_shapes_are_compiled_again(real):
    function, _ = real
    with compiling(True):
        torch.testing.assert_close(function(X, 3.0)[0], (X * 3).sin().sum())
        torch.testing.assert_close(function(X[:7], 2.0)[0], (X[:7] * 2).sin().sum())


@pytest.mark.parametrize(("dynamic", "compilations"), [(True, 1), (False, 4)])
def test_one_code_serves_every_length_of_a_marked_axis(real, dynamic, compilations):
    """The size of a mean is a number of the code, so it is exact for every length only if the axis has no fixed one."""
    from torch._dynamo.utils import counters

    @compiled
    def function(x):
        return x.square().mean(0)

    before = counters["stats"]["unique_graphs"]
    with compiling(True, dynamic=dynamic):
        for length in (4, 7, 12, 5):
            x = any_length(torch.linspace(0, 1, 3 * length, dtype=torch.float64).view(length, 3), 0)
            torch.testing.assert_close(function(x), x.square().mean(0))
    assert counters["stats"]["unique_graphs"] - before == compilations


def test_axes_without_a_mark_are_compiled_for_their_length(real):
    from torch._dynamo.utils import counters

    @compiled
    def function(x):
        return x.square().sum()

    before = counters["stats"]["unique_graphs"]
    with compiling(True, dynamic=True):
        for length in (4, 7, 12):
            function(torch.ones(length))
    assert counters["stats"]["unique_graphs"] - before == 3


def test_marked_function_may_call_marked_functions(real):
    function, _ = real

    @compiled
    def twice(x):
        return function(x, 2.0)[0] + function(x, 3.0)[0]

    with compiling(True):
        torch.testing.assert_close(twice(X), EXPECTED + (X * 3).sin().sum())


def test_marked_function_runs_eagerly_inside_a_transform():
    function, runs = make_counted()
    with compiling(True):
        mapped = vmap(lambda x: function(x, 2.0))(torch.stack([X, 2 * X]))
    assert runs == [False]
    torch.testing.assert_close(mapped[0], EXPECTED)


def test_warnings_of_a_backward_pass_are_ignored_only_while_compiling():
    def backward() -> None:
        with ignore_compiler_warnings():
            warnings.warn("of the compiler", UserWarning, stacklevel=1)

    with compiling(True):
        backward()
    with pytest.warns(UserWarning, match="of the compiler"):
        backward()


def test_compiling_ends_with_its_block_even_after_an_error():
    def raise_inside_block():
        with compiling(True):
            with compiling(False):
                assert not compilation._active.get()
            assert compilation._active.get()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        raise_inside_block()
    assert not compilation._active.get()


def test_function_that_cannot_be_compiled_warns_once_and_runs_eagerly():
    @compiled
    def reads(x):
        return x * float(x.sum().item() > 0) if x.sum() > 0 else -x  # control flow that depends on a value

    with compiling(True):
        with pytest.warns(CompileWarning, match="reads could not be compiled and runs eagerly"):
            first = reads(X)
        second = reads(-X)  # would raise an error if it warned
    assert torch.equal(first, X)
    assert torch.equal(second, X)


def test_error_of_the_function_itself_is_raised():
    @compiled
    def wrong(x):
        raise ValueError("expected something else")

    with pytest.raises(ValueError, match="something else"):
        wrong(X)


def test_other_threads_run_marked_functions_eagerly():
    """The thread that gathers the next images must not wait for the compiler."""
    function, runs = make_counted()
    with compiling(True), ThreadPoolExecutor(1) as executor:
        executor.submit(function, X, 2.0).result()
    assert runs == [False]


def test_too_many_recompilations_disable_compilation_without_ending_the_run(monkeypatch):
    """A worker of a sweep trains with hundreds of batch sizes."""
    if not any(map(shutil.which, ("g++", "c++", "clang++"))):
        pytest.skip("torch needs a C++ compiler to compile for a CPU")
    monkeypatch.setattr(compilation, "RECOMPILATIONS", 1)
    function, _ = make_counted()
    with torch._dynamo.config.patch(recompile_limit=1), compiling(True):
        function(X[:3], 2.0)
        with pytest.warns(CompileWarning):
            result = function(X[:4], 2.0)
        torch.testing.assert_close(result, (X[:4] * 2).sin().sum())
        function(X[:5], 2.0)


def test_compiler_is_imported_in_another_thread():
    """In a new process, which has not imported it; the thread has to end before the import is complete."""
    code = (
        "import sys; from pogm.core.compilation import import_compiler; name = 'torch._inductor.compile_fx'\n"
        "assert name not in sys.modules; thread = import_compiler(); thread.join(); assert name in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)
