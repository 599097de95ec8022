"""Questions about training, answered by several runs."""
