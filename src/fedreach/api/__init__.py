"""The Python interface: compare, run, sweep, open."""
