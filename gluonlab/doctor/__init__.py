"""Doctor: finds problems of MXNet on this machine, and reports the cause and cure of each."""
