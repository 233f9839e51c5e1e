"""Process-wide settings of a session."""

import pytest
import torch

from pogm._system.errors import UsageError
from pogm._system.runtime import configure_runtime

CPU, GPU = torch.device("cpu"), torch.device("cuda", 1)


@pytest.mark.parametrize("precision", ["fp32", "bf16", "fp64"])
def test_dtype_of_the_weights(precision):
    expected = torch.float64 if precision == "fp64" else torch.float32
    assert configure_runtime(CPU, precision, deterministic=False) == expected


def test_tf32_is_refused_on_a_cpu():
    with pytest.raises(UsageError, match=r"Expected a GPU for precision tf32.*found a CPU"):
        configure_runtime(CPU, "tf32", deterministic=False)


@pytest.mark.parametrize(("precision", "allowed"), [("fp32", False), ("tf32", True), ("bf16", True)])
def test_settings_for_a_gpu(monkeypatch, precision, allowed):
    selected, reset = [], []
    monkeypatch.setattr(torch.cuda, "set_device", selected.append)
    monkeypatch.setattr(torch.cuda, "reset_peak_memory_stats", reset.append)
    matmul, cudnn = torch.backends.cuda.matmul, torch.backends.cudnn
    before = matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic
    try:
        configure_runtime(GPU, precision, deterministic=False)
        assert (matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic) == (allowed, allowed, True)
    finally:
        matmul.allow_tf32, cudnn.allow_tf32, cudnn.deterministic = before
    assert selected == reset == [GPU]
