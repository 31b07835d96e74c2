"""Data sets, partitions over clients, label noise, who takes part, and shifts of those who do not."""
