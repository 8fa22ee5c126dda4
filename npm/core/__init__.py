"""Errors, settings, types and display, for use by every package of the project."""
