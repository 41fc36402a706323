"""`python -m bertkit`, which is also what `accelerate launch -m bertkit` and torchrun run."""

from __future__ import annotations

from bertkit.cli import run

if __name__ == "__main__":
    run()
