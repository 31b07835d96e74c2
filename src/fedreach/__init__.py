"""FedReach: federated learning for the clients who train and for those who never do."""

__version__ = "0.1.0"
