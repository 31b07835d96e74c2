"""Models: built-in networks, state, outputs, seeded draws."""
