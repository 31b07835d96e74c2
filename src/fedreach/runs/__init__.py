"""A run on disk: its folder, its resumption, and the loop over its rounds."""
