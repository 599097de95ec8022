"""Diagnosis of slow multi-device training: the breakdown of a step, and what would make it
faster.
"""
