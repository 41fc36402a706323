"""What goes with a model that others use: its card, code that uses it, and the hub."""
