"""Reports on runs: slices of the rows, comparisons, and an HTML page."""
