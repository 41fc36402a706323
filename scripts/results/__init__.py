"""The figures of README and docs: what `make results` and `make budget` run."""
