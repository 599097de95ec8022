"""A run, from its TrainConfig (plan.py) to its end (loop.py), and what is made of it afterwards."""
