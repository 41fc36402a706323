"""Scores of a whole split at once, offline: classification, answers; and the bootstrap for their confidence intervals."""
