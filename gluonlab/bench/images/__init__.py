"""``bench images``: how fast JPEGs become batches."""
