"""Running text on its way into a model: what a vocabulary is learnt from, and the corpus that pre-training reads."""
