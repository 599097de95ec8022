"""Studies, each of which answers a question about training by measuring several runs."""
