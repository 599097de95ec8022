"""Image files to pixels.

Needs neither MXNet nor the rest of gluonlab: the processes that decode load quickly and stay small.
"""
