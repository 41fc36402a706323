"""Parsers of data files, one module per format: from a file's content to blocks of rows."""
