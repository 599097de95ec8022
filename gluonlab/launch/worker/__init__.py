"""The process of a group that trains; `gluonlab.launch` starts it, or somebody else's launcher."""
