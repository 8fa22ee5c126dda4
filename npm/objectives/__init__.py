"""One loss each, with its head; an objective returns sums and counts, and only the trainer divides."""
