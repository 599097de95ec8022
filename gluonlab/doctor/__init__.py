"""Doctor: finds problems with MXNet on this machine, and reports the cause and cure of each."""
