"""Data sets, partitions over clients, label noise, participation, and shifts of unseen clients."""
