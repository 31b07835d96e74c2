"""What the server does with the weighted mean of the updates, and in which rounds it trains itself."""

from fedreach.federation.server.adaptive import FedAdam as FedAdam
from fedreach.federation.server.adaptive import FedYogi as FedYogi
from fedreach.federation.server.average import Average as Average
from fedreach.federation.server.fedavgm import FedAvgM as FedAvgM
from fedreach.federation.server.feddf import FedDF as FedDF
from fedreach.federation.server.fine_tune import FineTune as FineTune
from fedreach.federation.server.safari import Safari as Safari
from fedreach.federation.server.server_only import ServerOnly as ServerOnly
from fedreach.federation.server.torch_optimizer import TorchOptimizer as TorchOptimizer
from fedreach.registry import NameTable

SERVERS = NameTable(
    __name__,
    average="average:Average",
    fedavgm="fedavgm:FedAvgM",
    adam="adaptive:FedAdam",
    yogi="adaptive:FedYogi",
    torch_optim="torch_optimizer:TorchOptimizer",
    safari="safari:Safari",
    server_only="server_only:ServerOnly",
    fine_tune="fine_tune:FineTune",
    feddf="feddf:FedDF",
)
