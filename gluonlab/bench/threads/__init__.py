"""``bench threads``: how idle threads wait, and how processes share the cores."""
