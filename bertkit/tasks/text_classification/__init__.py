"""Text classification: a class, several labels or a number for a text or a pair of texts (Devlin et al., 2019, section 4.1)."""
