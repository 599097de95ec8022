"""``study scaling``: strong and weak scaling over devices, stores and splits, and start-up."""
