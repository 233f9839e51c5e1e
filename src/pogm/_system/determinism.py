"""Deterministic mode of torch: bit-identical results of repeated runs on one GPU.

The mode is a context manager, so sessions with and without it can alternate in one process. Only the environment
variable of cuBLAS stays set, because cuBLAS reads it once.
"""

import os
import re
from collections.abc import Iterator
from contextlib import contextmanager

import torch
import torch.utils.deterministic

from pogm._system.errors import UsageError

WORKSPACE = "CUBLAS_WORKSPACE_CONFIG"
FIXED_WORKSPACES = (":4096:8", ":16:8")  # the two values with which cuBLAS is deterministic
REFUSED = re.compile(r"([^:\n]+) does not have a deterministic implementation")  # text of torch's error


def fix_cublas_workspace() -> None:
    """Set the cuBLAS workspace to a fixed size, in this process and its child processes.

    Raises:
        UsageError: CUDA is already in use with another value. cuBLAS would not read the new one.
    """
    found = os.environ.get(WORKSPACE)
    if found in FIXED_WORKSPACES:
        return
    if torch.cuda.is_initialized():  # type: ignore[no-untyped-call]
        raise UsageError(
            f"Expected {WORKSPACE}={FIXED_WORKSPACES[0]} before the first use of CUDA, for a deterministic run; found "
            f"{found or 'no value'} and CUDA in use. Set the variable before the process starts, or use a new process."
        )
    os.environ[WORKSPACE] = FIXED_WORKSPACES[0]


@contextmanager
def deterministic_algorithms() -> Iterator[None]:
    """Use deterministic kernels only, in eager and compiled code; restore the previous mode at the end.

    - An operation without a deterministic kernel raises a RuntimeError (see ``nondeterministic_operation``).
    - cuDNN does not choose convolutions by timing them.
    - Inductor does not choose anything by timing it. Torch's own deterministic mode still times pointwise kernels,
      since the order of operations on one element is fixed. But the block size decides how many elements one thread
      computes, and so which products and sums the GPU compiler contracts. So this is switched off, too.
    - Torch does not fill uninitialised memory, which would cost time. This is safe because every buffer that we
      allocate empty (results of domains, staging memory, prefetch windows) is fully written before it is read.
    """
    import torch._inductor.config as inductor

    tunes = hasattr(inductor.triton, "autotune_pointwise")
    has_mode = hasattr(inductor, "deterministic")
    mode = torch.are_deterministic_algorithms_enabled(), torch.is_deterministic_algorithms_warn_only_enabled()
    fill = torch.utils.deterministic.fill_uninitialized_memory  # type: ignore[attr-defined]
    cudnn = torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark
    pointwise = tunes and inductor.triton.autotune_pointwise
    compiler = has_mode and inductor.deterministic
    try:
        torch.use_deterministic_algorithms(True)
        torch.utils.deterministic.fill_uninitialized_memory = False  # type: ignore[attr-defined]
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = True, False
        if has_mode:
            inductor.deterministic = True
        if tunes:
            inductor.triton.autotune_pointwise = False
        yield
    finally:
        torch.use_deterministic_algorithms(mode[0], warn_only=mode[1])
        torch.utils.deterministic.fill_uninitialized_memory = fill  # type: ignore[attr-defined]
        torch.backends.cudnn.deterministic, torch.backends.cudnn.benchmark = cudnn
        if has_mode:
            inductor.deterministic = compiler
        if tunes:
            inductor.triton.autotune_pointwise = pointwise


def nondeterministic_operation(error: BaseException) -> str | None:
    """Return the name of the operation that torch refused in deterministic mode, or None for any other error."""
    found = REFUSED.search(str(error))
    return found[1].strip() if found else None
