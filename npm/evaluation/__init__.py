"""Evaluation of an encoder and an index: a task gives examples, a method answers them, a report makes tables."""
