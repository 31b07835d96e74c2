"""Numbers that clients compute on their own data after local training, and send with their report."""

from fedreach.federation.measurements.disagreement import Disagreement as Disagreement
from fedreach.federation.measurements.loss_rms import LossRMS as LossRMS
from fedreach.federation.measurements.wlrc import WLRC as WLRC
from fedreach.registry import NameTable

MEASUREMENTS = NameTable(
    __name__, wlrc="wlrc:WLRC", disagreement="disagreement:Disagreement", loss_rms="loss_rms:LossRMS"
)
