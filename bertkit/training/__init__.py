"""The training loop, and what it uses: batches, the optimizer, checkpoints, trackers."""
