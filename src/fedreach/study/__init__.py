"""The front door in Python: methods are compared, a run is looked at round by round, and results are asked.

All of it becomes an experiment as a TOML file says it: one check, one set of run folders.
"""
