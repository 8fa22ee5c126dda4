"""Selection of masked spans, and the masked input of the encoder."""
