"""Encoders fine-tuned on labeled tasks by the one trainer, with several learning rates and seeds, and measured."""
