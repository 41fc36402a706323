"""What is said of data: its faults, likely label errors, and whether more of it would help."""
