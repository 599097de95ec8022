"""``bench pipeline``: schedules priced and drawn."""
