"""One step of an optimizer for a key of a store, on one device or several."""
