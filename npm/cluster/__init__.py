"""The same jobs and partitions on several machines."""
