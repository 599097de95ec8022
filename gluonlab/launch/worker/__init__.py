"""A training process in a group, started by `gluonlab.launch` or another launcher."""
