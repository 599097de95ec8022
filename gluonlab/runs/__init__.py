"""The folder of a training run: its format, its writer and its readers."""
