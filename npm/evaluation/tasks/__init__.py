"""What a zero-shot task is: its file, its prompts, its rows, and the readers and builders of published sets."""
