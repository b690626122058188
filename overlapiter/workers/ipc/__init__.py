"""Messages between two processes."""
