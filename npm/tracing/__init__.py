"""Exact look-up of phrases in a corpus, and running text traced back to it."""
