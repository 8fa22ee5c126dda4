"""Encoders fine-tuned on labelled tasks by the one trainer, with several learning rates and seeds, and measured."""
