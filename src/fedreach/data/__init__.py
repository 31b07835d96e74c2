"""Data sets, partitions among clients, label noise, participation, and shifts of unseen clients."""
