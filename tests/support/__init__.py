"""Helpers of the tests of several packages."""
