"""This host as Linux reports it: cores, memory, and the limits of control groups."""
