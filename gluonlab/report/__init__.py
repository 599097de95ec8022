"""Runs as one HTML page that needs neither other files nor a network.

It is made by ``python -m gluonlab.report RUN [RUN...]``.
"""
