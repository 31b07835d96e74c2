"""Utilities that all packages use: errors, arrays, random streams, files and row stores."""
