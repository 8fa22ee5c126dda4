"""Errors, settings, types and display: what every package of the project may use."""
