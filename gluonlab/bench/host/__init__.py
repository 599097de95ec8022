"""``bench host``: what Python costs a step, and how much of a core training uses."""
