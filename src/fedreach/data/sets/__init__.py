"""Data sets: where they come from, how their files are read."""
