"""Measurements of many settings in turns, kept as they come, so that nothing is measured twice."""
