"""Evaluation: metrics, populations, prediction modes, statistics."""
