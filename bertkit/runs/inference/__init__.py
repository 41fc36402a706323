"""Trained models in use, from Python: predictions, vectors, explanations, filled masks."""
