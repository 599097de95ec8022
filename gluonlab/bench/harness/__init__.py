"""Parts that all measurements share: worker processes, interleaved rounds, records and tables."""
