"""What clients' models are trained to make small."""

from fedreach.federation.losses.base import FunctionLoss as FunctionLoss
from fedreach.federation.losses.cross_entropy import CrossEntropy as CrossEntropy
from fedreach.federation.losses.feddecorr import FedDecorr as FedDecorr
from fedreach.federation.losses.fedlc import FedLC as FedLC
from fedreach.federation.losses.fedntd import FedNTD as FedNTD
from fedreach.federation.losses.fedsam import FedSAM as FedSAM
from fedreach.federation.losses.huber import Huber as Huber
from fedreach.federation.losses.label_smoothing import LabelSmoothing as LabelSmoothing
from fedreach.federation.losses.logit_adjusted import LogitAdjusted as LogitAdjusted
from fedreach.federation.losses.moon import MOON as MOON
from fedreach.federation.losses.mse import MSE as MSE
from fedreach.registry import NameTable

LOSSES = NameTable(
    __name__,
    cross_entropy="cross_entropy:CrossEntropy",
    logit_adjusted="logit_adjusted:LogitAdjusted",
    fedlc="fedlc:FedLC",
    label_smoothing="label_smoothing:LabelSmoothing",
    moon="moon:MOON",
    feddecorr="feddecorr:FedDecorr",
    fedntd="fedntd:FedNTD",
    fedsam="fedsam:FedSAM",
    mse="mse:MSE",
    huber="huber:Huber",
)
