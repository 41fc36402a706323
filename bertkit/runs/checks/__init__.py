"""Checks of data: its faults, likely label errors, and whether more rows would help."""
