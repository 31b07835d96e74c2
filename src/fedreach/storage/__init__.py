"""Bytes on disk: files that are whole or not there, appended lines, and rows shared between states."""
