"""Code behind ``gluonlab allreduce``, which measures, predicts and draws allreduce algorithms."""
