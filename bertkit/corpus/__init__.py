"""Running text on its way into a model: what a vocabulary is learnt from, and a corpus of tokens."""
