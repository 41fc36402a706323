"""Trained models in use: predictions, scores, vectors, explanations, filled masks."""
