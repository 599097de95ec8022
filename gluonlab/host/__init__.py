"""The host, as Linux reports it: cores, memory, signals, child processes and launchers."""
