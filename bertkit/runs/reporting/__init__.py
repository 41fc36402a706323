"""Reports on runs: slices of the rows, and an HTML page."""
