"""Pipelines as data: schedules of microbatches over stages, checked, priced, drawn and run."""
