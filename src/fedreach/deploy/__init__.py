"""Trained models and adapters: load, predict, export."""
