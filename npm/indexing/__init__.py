"""A corpus becomes an index, which grows, shrinks, is checked and is measured."""
