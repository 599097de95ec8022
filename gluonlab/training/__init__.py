"""Training runs: their settings (plan.py), training (loop.py) and evaluation (evaluate_run.py)."""
