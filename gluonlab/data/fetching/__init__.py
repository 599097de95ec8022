"""Data sets' files: where they come from, how they arrive and how they are checked."""
