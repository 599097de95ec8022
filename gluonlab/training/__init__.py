"""Training runs: their settings (plan.py), the training loop (loop.py), and later evaluations."""
