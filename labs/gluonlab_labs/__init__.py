"""Build notebooks, handouts and slides from the sources of the labs.

labs/AUTHORING.md explains how a source is written.
"""
