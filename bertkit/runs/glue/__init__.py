"""GLUE: all its tasks as one command, and the files of its leaderboard."""
