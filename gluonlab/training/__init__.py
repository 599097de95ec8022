"""Training on several devices, from one batch (step.py) to a whole run (loop.py)."""
