"""Speed against other libraries: what `make bench` and its relatives run."""
