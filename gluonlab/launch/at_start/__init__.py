"""Folder with `sitecustomize`, which Python imports when it starts the user's program."""
