"""Pre-training: its phases, its sequences, its estimate and its evaluation on held-out text."""
