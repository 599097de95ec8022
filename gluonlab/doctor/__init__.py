"""What keeps MXNet from running here, or from running well, with causes and cures."""
