"""The Python interface: compare, run, sweep and open."""
