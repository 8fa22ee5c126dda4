"""Zero-shot tasks: prompts, labels, methods, scores."""
