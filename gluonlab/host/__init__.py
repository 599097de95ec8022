"""The host: its cores and memory, signals, child processes and launchers."""
