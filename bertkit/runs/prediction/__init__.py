"""`bertkit predict`: rows of files in, files of predictions out, window by window."""
