"""How clients train: local SGD, with one correction of the gradient per solver."""

from fedreach.federation.local_sgd import LocalSGD as LocalSGD
from fedreach.federation.local_sgd import Schedule as Schedule
from fedreach.federation.protocols import LocalSolver as LocalSolver
from fedreach.federation.protocols import MemorySolver as MemorySolver
from fedreach.federation.solvers.fedavg import FedAvg as FedAvg
from fedreach.federation.solvers.feddyn import FedDyn as FedDyn
from fedreach.federation.solvers.fedprox import FedProx as FedProx
from fedreach.federation.solvers.scaffold import Scaffold as Scaffold
from fedreach.registry import NameTable

SOLVERS = NameTable(
    __name__,
    fedavg="fedavg:FedAvg",
    fedprox="fedprox:FedProx",
    scaffold="scaffold:Scaffold",
    feddyn="feddyn:FedDyn",
)
