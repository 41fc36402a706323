"""The papers' tables as commands, which pre-train, fine-tune and evaluate with bertkit's own commands."""
