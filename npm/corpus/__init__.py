"""Text in, token ids and offsets on disk."""
