"""Hugging Face encoders: loaded, saved, fingerprinted; and the one similarity."""
