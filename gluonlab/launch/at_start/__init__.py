"""Folder that contains `sitecustomize`, which the user's program imports when Python starts."""
