"""Small federations for tests and examples."""
