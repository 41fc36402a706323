"""Trained models in use: predictions, vectors, explanations, filled masks, exported graphs."""
