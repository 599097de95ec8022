"""Studies: each answers a question about training by several runs."""
