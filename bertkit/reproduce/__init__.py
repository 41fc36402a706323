"""The papers' tables as commands: what each pre-trains, fine-tunes and evaluates, run by bertkit's own commands."""
