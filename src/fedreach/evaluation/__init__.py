"""Evaluation: metrics, populations, prediction modes and statistics."""
