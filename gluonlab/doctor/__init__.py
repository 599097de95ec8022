"""Doctor: finds what prevents MXNet from running well on this machine, with cause and cure."""
