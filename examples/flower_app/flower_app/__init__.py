"""A FedReach experiment as a Flower app."""
