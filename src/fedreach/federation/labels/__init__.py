"""What the server is told of clients' labels."""

from fedreach.federation.labels.discrete_gaussian import DiscreteGaussian as DiscreteGaussian
from fedreach.federation.labels.discrete_laplace import DiscreteLaplace as DiscreteLaplace
from fedreach.federation.labels.exact import Exact as Exact
from fedreach.federation.labels.released import released_entropy as released_entropy
from fedreach.federation.labels.secure_sum import SecureSum as SecureSum
from fedreach.registry import NameTable

LABEL_STATISTICS = NameTable(
    __name__,
    exact="exact:Exact",
    discrete_laplace="discrete_laplace:DiscreteLaplace",
    discrete_gaussian="discrete_gaussian:DiscreteGaussian",
    secure_sum="secure_sum:SecureSum",
)
