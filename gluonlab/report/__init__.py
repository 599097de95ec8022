"""Runs as one HTML page that needs no other file and no network: ``python -m gluonlab.report RUN
[RUN...]``.
"""
