"""Quantities of the papers as numpy functions: what the parts use, and what their theorems say."""
