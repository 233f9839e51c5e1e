"""Domain generalization in PyTorch: Pareto optimal gradient matching, its rivals, and an honest benchmark."""

__version__ = "0.1.0"

from pogm import pareto as pareto
from pogm.algorithms.erm import ERM as ERM
from pogm.algorithms.fish import Fish as Fish
from pogm.algorithms.fishr import Fishr as Fishr
from pogm.algorithms.pogm import POGM as POGM
from pogm.core.batch import Batch as Batch
from pogm.learner import Learner as Learner
from pogm.modifiers.mixup import Mixup as Mixup
