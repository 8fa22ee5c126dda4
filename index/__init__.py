"""Numpy arrays in, row indices and scores out: the phrase index's storage and search, without text or models."""
