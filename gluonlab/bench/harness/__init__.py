"""Shared parts of measurements: worker processes and rounds, records, comparisons and tables."""
