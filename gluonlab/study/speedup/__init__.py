"""Diagnoses slow multi-device training: measures the parts of a step, and finds better settings."""
