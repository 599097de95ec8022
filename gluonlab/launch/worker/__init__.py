"""A training process of a group, started by `gluonlab.launch` or another launcher."""
