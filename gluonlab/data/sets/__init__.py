"""Data sets by name: their splits in memory or in files."""
