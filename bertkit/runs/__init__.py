"""The work of the commands: fine-tune, pre-train, evaluate, predict, compare; and the run folders that they read and write."""
