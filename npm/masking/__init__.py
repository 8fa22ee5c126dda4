"""Selection of masked spans, and what the encoder sees instead."""
