"""Engines: interchangeable implementations of local training and evaluation."""

from fedreach.engines.choice import ENGINES as ENGINES
from fedreach.engines.choice import EngineChoice as EngineChoice
from fedreach.engines.choice import build_engine as build_engine
from fedreach.engines.choice import choose as choose
from fedreach.engines.engine import TorchEngine as TorchEngine
from fedreach.engines.manual import Manual as Manual
from fedreach.engines.native import Native as Native
from fedreach.engines.protocols import Engine as Engine
from fedreach.engines.protocols import Task as Task
from fedreach.engines.sequential import Sequential as Sequential
from fedreach.engines.trainer import GroupTrainer as GroupTrainer
from fedreach.engines.vmap import Vmap as Vmap
