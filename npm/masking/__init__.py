"""Which spans of the training text are masked, and what the encoder sees instead."""
