"""BERT: its configuration, encoder and heads, and the Hugging Face folders that it is read from and written to."""
