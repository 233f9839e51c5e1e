"""Memory that a step on a CPU gives back, kept for the next one."""

import ctypes
from functools import cache

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # as glibc's malloc.h numbers them


@cache
def keep_freed_memory() -> None:
    """Let malloc keep what is freed, in this process.

    A step makes new weights rather than change them, so it frees and takes as much every time. glibc hands large
    blocks back to the system at once, and the system clears their pages again: on ResNet-50 that took longer than the
    arithmetic. Elsewhere nothing happens.
    """
    mallopt = getattr(ctypes.CDLL(None), "mallopt", None)
    if mallopt is not None:
        mallopt(MMAP_MAX, 0)
        mallopt(TRIM_THRESHOLD, 2**31 - 1)
