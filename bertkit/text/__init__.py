"""From text to word pieces: the tokenizer, truncation, and a cache of pieces."""
