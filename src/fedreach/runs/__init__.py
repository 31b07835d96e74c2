"""One run on disk: its folder, how it resumes, and the loop over its rounds."""
