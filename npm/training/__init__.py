"""The one training loop, its schedule, its batches and the folder that a run leaves behind."""
