"""The one training loop, its schedule, its batches and the folder of a run."""
