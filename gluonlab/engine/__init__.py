"""What must be true before MXNet loads, and how it is called afterwards."""
