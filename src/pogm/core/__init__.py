"""Basic types of the package: batches, models, states, optimizers, problems. Depends only on torch."""

import os

os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")  # huge pages: a step on a CPU allocates many large tensors
