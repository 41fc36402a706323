"""Scores of a whole split at once, offline: classification, answers; and the bootstrap that says how sure they are."""
