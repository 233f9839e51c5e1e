"""Process-wide settings of torch, CUDA and the C library, set before a session computes."""

import ctypes
from functools import cache

import torch

from pogm._system.determinism import fix_cublas_workspace
from pogm._system.errors import UsageError

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # option numbers of mallopt in glibc's malloc.h


def configure_runtime(device: torch.device, precision: str, deterministic: bool) -> torch.dtype:
    """Configure this process for sessions on a device.

    - Deterministic sessions on a GPU: fix the size of the cuBLAS workspace.
    - GPU: allow or forbid TF32, make cuDNN deterministic, select the device, reset the statistics of peak memory.
    - CPU: let malloc keep freed memory.

    Three process-wide settings are made elsewhere. The number of CPU threads belongs to a run, which restores it
    (``benchmark.runs.context.threads``). Deterministic algorithms are enabled only while a session computes
    (``deterministic_algorithms``). Torch reads the variable for large pages with its first allocation, so importing
    ``pogm.core`` sets it.

    Returns:
        The dtype of the weights.

    Raises:
        UsageError: The device does not support the precision, or CUDA was used before with another cuBLAS workspace.
    """
    if deterministic and device.type == "cuda":
        fix_cublas_workspace()
    if precision == "tf32" and device.type != "cuda":
        raise UsageError("Expected a GPU for precision tf32, which only GPUs have; found a CPU. Pass fp32.")
    if device.type == "cuda":
        torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "fp32"
        torch.backends.cudnn.deterministic = True
        if device.index is not None:
            torch.cuda.set_device(device)  # streams and CUDA graphs use the current device
        torch.cuda.reset_peak_memory_stats(device)  # one process may run several sessions, one after the other
    else:
        keep_freed_memory()
    return torch.float64 if precision == "fp64" else torch.float32


@cache
def keep_freed_memory() -> None:
    """Let malloc keep freed memory in this process instead of returning it to the system.

    A step allocates new weights and frees the old ones. By default, glibc returns large blocks to the system at once,
    and the system clears their pages before it hands them out again. With ResNet-50 on a CPU, this took longer than
    the arithmetic. On systems without ``mallopt`` this function does nothing.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
