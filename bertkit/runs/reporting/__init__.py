"""What is said of runs: scores, slices, comparisons, and a page of them all."""
