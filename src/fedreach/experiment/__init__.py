"""Experiments: files, comparisons, sweeps, workers."""
