"""Seconds and joules: the radio channel, what a round costs, and who gets which bandwidth and CPU frequency."""
