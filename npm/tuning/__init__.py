"""Search settings of an index, chosen by measuring."""
