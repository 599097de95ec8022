"""Diagnosis of slow multi-device training: the parts of a step, and settings that help."""
