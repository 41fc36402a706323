"""The search for settings: search spaces, trials, and the study that consists of them."""
