"""Processes and ranks that share the work of a cohort."""
