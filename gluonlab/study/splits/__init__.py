"""``study splits``: one network under every split: time, bytes, memory."""
