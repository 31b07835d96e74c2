"""Wireless networks: radio channels, time and energy of a round, and allocation of bandwidth and CPU frequencies."""
