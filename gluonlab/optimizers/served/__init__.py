"""The optimizer on MXNet's parameter servers: what travels to them, and what runs there."""
