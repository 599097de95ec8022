"""``bench splits``: one network under each split, beside one device."""
