"""``study batch-size``: how many steps, epochs and seconds a target takes with each batch size."""
