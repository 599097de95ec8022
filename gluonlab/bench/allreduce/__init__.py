"""Implementation of ``gluonlab allreduce``: measures, predicts and draws allreduce algorithms."""
