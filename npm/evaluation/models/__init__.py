"""Looks at a model that need no task: its parameters, its word embeddings, its vocabulary."""
