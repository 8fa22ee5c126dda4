"""One file an evaluator."""
