"""Clients at work in a simulated round."""
