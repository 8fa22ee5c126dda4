"""How well an encoder and an index do: a task gives examples, a method answers them, a report makes tables."""
