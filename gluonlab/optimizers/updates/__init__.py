"""One step of an optimizer for what lies under a key of a store, on one device or several."""
