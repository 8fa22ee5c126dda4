"""Sentence similarity: Spearman's correlation with people's scores, and the geometry of the vectors."""
