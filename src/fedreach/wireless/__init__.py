"""Seconds and joules: the radio channel, the cost of a round, and the allocation of bandwidth and CPU frequency."""
