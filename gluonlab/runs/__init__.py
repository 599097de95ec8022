"""A run's folder: its format, its writer and its reader."""
