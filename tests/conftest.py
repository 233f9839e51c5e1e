"""Settings of all tests."""

import os
import tempfile

import torch

# Workers of pytest-xdist share the cores: torch's own threads on top make small operations wait for one another.
torch.set_num_threads(1)

_cache = tempfile.TemporaryDirectory(prefix="pogm-test-cache-", ignore_cleanup_errors=True)
os.environ["POGM_CACHE"] = _cache.name  # decoded images of tests; one folder for each worker

pytest_plugins = ["browsers", "run_folders"]
