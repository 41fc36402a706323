"""Reports as HTML files that stand alone."""
