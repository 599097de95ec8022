"""From the sources of the labs to notebooks and pages.

CONTRIBUTING.md explains how a source is written.
"""
