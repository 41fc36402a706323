"""The training loop, and what it stands on: batches, the optimizer, checkpoints, trackers."""
