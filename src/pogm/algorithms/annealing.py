"""What methods share whose objective changes in the middle of training."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from pogm.core.optimizers import Scalar
from pogm.core.problem import Problem


def with_lr(problem: Problem, late: Tensor, lr: Scalar) -> Problem:
    """The problem with another learning rate where it is late; with the one it has where the other is 0."""
    optimizer: Any = problem.optimizer  # one with a learning rate
    # Adding to a zero makes a tensor of a number, in float64, without a copy from the host.
    zero = torch.zeros((), dtype=torch.float64, device=late.device)
    now = torch.where(late & (zero + lr > 0), zero + lr, zero + optimizer.lr)
    return dataclasses.replace(problem, optimizer=dataclasses.replace(optimizer, lr=now))
