"""Small problems that tests share, most of them from `pogm.testing`."""

import pytest
import torch
from torch import nn

from pogm.testing import CLASSES, DOMAINS, INPUTS, SAMPLES, WIDTH
from pogm.testing import assert_close as assert_close
from pogm.testing import make_batches as batches
from pogm.testing import make_problem as toy
from pogm.testing import make_trial as trial
from pogm.testing import no_synchronisation as no_synchronisation
from pogm.testing import take_steps as steps

__all__ = ["assert_close", "batches", "no_synchronisation", "steps", "toy", "trial"]

K, B, C = DOMAINS, SAMPLES, CLASSES

needs_gpu = pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a CUDA device")


def features(batch_norm: bool = False, inputs: int = INPUTS) -> nn.Module:
    norm = [nn.BatchNorm1d(WIDTH)] if batch_norm else []
    return nn.Sequential(nn.Linear(inputs, WIDTH), *norm, nn.Tanh())
