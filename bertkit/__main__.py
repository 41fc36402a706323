"""`python -m bertkit`, also run by `accelerate launch -m bertkit` and torchrun."""

from __future__ import annotations

from bertkit.cli import run

if __name__ == "__main__":
    run()
