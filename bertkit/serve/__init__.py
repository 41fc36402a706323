"""Models behind HTTP, for clients of Hugging Face and of text-embeddings-inference."""
