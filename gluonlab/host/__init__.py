"""The host, as seen by Linux: cores, memory, signals, child processes and launchers."""
