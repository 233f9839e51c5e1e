"""The vocabulary: batches, models, states, problems. Depends on torch alone."""

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # large tensors on large pages: a CPU's steps make many new ones
