"""``bench scaling``: the same training by more devices and more processes."""
