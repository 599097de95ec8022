"""Folder that contains `sitecustomize`, which Python imports when the user's program starts."""
