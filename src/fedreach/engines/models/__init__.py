"""Models: built-in networks, their state and outputs, and seeded random numbers."""
