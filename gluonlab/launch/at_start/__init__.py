"""The folder in which each Python of the user's own program finds `sitecustomize`, at its start."""
