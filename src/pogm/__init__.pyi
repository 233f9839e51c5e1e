# Generated from the registries by tests/test_public_names.py. Do not edit.

from pogm import pareto as pareto
from pogm.algorithms.and_mask import ANDMask as ANDMask
from pogm.algorithms.arm import ARM as ARM
from pogm.algorithms.cagrad import CAGrad as CAGrad
from pogm.algorithms.cdann import CDANN as CDANN
from pogm.algorithms.coral import CORAL as CORAL
from pogm.algorithms.dann import DANN as DANN
from pogm.algorithms.eqrm import EQRM as EQRM
from pogm.algorithms.erm import ERM as ERM
from pogm.algorithms.fish import Fish as Fish
from pogm.algorithms.fishr import Fishr as Fishr
from pogm.algorithms.group_dro import GroupDRO as GroupDRO
from pogm.algorithms.idgm import IDGM as IDGM
from pogm.algorithms.irm import IRM as IRM
from pogm.algorithms.madg import MADG as MADG
from pogm.algorithms.mgda import MGDA as MGDA
from pogm.algorithms.mldg import MLDG as MLDG
from pogm.algorithms.mmd import MMD as MMD
from pogm.algorithms.mtl import MTL as MTL
from pogm.algorithms.pcgrad import PCGrad as PCGrad
from pogm.algorithms.pogm import POGM as POGM
from pogm.algorithms.pogm_published import MeasurementPOGM as MeasurementPOGM
from pogm.algorithms.pogm_published import OfficialPOGM as OfficialPOGM
from pogm.algorithms.pogm_published import PaperTextPOGM as PaperTextPOGM
from pogm.algorithms.rdm import RDM as RDM
from pogm.algorithms.reptile import Reptile as Reptile
from pogm.algorithms.rsc import RSC as RSC
from pogm.algorithms.sagm import SAGM as SAGM
from pogm.algorithms.sagnet import SagNet as SagNet
from pogm.algorithms.sand_mask import SANDMask as SANDMask
from pogm.algorithms.upgrad import UPGrad as UPGrad
from pogm.algorithms.vrex import VREx as VREx
from pogm.core.batch import Batch as Batch
from pogm.deployment.model import load as load
from pogm.learner.backward import backward as backward
from pogm.learner.learner import Learner as Learner
from pogm.learner.torchjd import TorchJD as TorchJD
from pogm.modifiers.augment import Augment as Augment
from pogm.modifiers.cirl import CIRL as CIRL
from pogm.modifiers.itta import ITTA as ITTA
from pogm.modifiers.mixstyle import MixStyle as MixStyle
from pogm.modifiers.mixup import Mixup as Mixup
from pogm.modifiers.swad import SWAD as SWAD

__version__: str
