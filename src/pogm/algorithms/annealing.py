"""Change of the learning rate in the middle of training, for methods with two phases."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from pogm.core.optimizers import Scalar
from pogm.core.problem import Problem


def change_lr(problem: Problem, second_phase: Tensor, lr: Scalar) -> Problem:
    """Return the problem with learning rate ``lr`` in the second phase, unless ``lr`` is 0.

    Args:
        problem: A problem whose optimizer has one learning rate.
        second_phase: bool scalar.
        lr: Learning rate of the second phase; 0 keeps that of the first.
    """
    optimizer: Any = problem.optimizer
    # Adding a number to a zero on the device makes a float64 tensor without a copy from the host.
    zero = torch.zeros((), dtype=torch.float64, device=second_phase.device)
    current = torch.where(second_phase & (zero + lr > 0), zero + lr, zero + optimizer.lr)
    return dataclasses.replace(problem, optimizer=dataclasses.replace(optimizer, lr=current))
