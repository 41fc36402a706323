"""What goes with a model that others use: its card, and the hub."""
