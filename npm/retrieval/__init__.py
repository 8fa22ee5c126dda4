"""An index or passages in, phrases out."""
