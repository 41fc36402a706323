"""Settings that are searched: spaces, trials, the study that they form."""
