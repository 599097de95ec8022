"""Training by more than one process."""
