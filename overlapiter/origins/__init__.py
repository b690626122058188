"""The slow side: where the files come from, mounted directories and what fsspec reads."""
