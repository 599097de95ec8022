"""Decodes image files to pixels, in this process or in a pool of processes.

These modules do not import MXNet, so that the decoding processes start quickly and stay small.
"""
