"""Checks that every component of a type must pass, in one module per type."""
