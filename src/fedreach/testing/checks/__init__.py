"""Checks of the component types: what every component of a type must keep."""
