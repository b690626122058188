"""The store: staged files in few segments, and one index that says what is where."""
