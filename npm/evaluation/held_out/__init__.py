"""Losses and accuracies on held-out articles."""
