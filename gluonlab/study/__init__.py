"""Studies: each answers a question about training with several runs."""
