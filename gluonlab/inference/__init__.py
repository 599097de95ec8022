"""Predictions by the network of a finished run: python -m gluonlab.predict."""
