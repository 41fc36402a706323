"""From plain text to training sequences: corpora of tokens, and what pre-training draws from them."""
