"""Numpy arrays in, row numbers and scores out: the phrase index's storage and search, without text or models."""
