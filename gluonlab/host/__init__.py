"""What Linux tells of this host: cores, memory, and the limits of control groups."""
