"""Data sets, partitions over clients, label noise, and who takes part."""
