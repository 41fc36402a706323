"""Scores of trained models: `bertkit eval`, and the paired comparison of runs."""
