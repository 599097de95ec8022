wrong_transfers = {"A": (1, 1), "B": (0, 1), "C": (1, 0)}
