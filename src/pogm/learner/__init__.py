"""Training inside a user's own loop: ``Learner`` trains a module, ``backward`` fills the gradients of parameters."""

from pogm.learner.backward import backward as backward
from pogm.learner.learner import Learner as Learner
from pogm.learner.torchjd import TorchJD as TorchJD
