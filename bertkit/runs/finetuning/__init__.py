"""Fine-tuning: a run, several runs of a recipe, and the baselines that a run must beat."""
