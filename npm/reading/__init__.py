"""Readers: models that find the answer of a question in a passage read with it."""
