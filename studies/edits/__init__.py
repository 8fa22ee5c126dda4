"""Checkpoints changed without training, for studies of the effect of pretraining."""
