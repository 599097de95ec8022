"""From the sources of the labs to notebooks and pages.

labs/AUTHORING.md explains how a source is written.
"""
