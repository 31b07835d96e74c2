"""One run on disk: what stands in its folder, how it goes on, and the loop over its rounds."""
