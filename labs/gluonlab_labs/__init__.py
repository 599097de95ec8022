"""From the sources of the labs to notebooks and pages.

CONTRIBUTING.md tells how a source is written.
"""
