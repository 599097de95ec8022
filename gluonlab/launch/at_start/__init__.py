"""Folder from which the user's program imports `sitecustomize` when Python starts."""
