"""A paper's figures as recipes: run what it ran, and say which of its statements hold here."""
