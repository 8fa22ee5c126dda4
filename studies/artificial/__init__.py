"""Artificial text from a grammar and a lexicon, for studies of what a model learns from structure alone."""
