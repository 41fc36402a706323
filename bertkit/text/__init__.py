"""From text to word pieces: the tokenizer, its training, and truncation."""
