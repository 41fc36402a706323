"""Multiple choice: which of several choices continues a text, or answers a question (Devlin et al., 2019, section 4.4)."""
