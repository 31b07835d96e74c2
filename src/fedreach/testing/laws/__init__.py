"""Laws that parts must keep: those of a kind, and those of single methods."""
