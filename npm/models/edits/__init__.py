"""Checkpoints changed without training, for studies of what pretraining gives."""
