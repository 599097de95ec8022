def median_steps(curves, target):
    reached = sorted(next((step for step, right in curve if right >= target), math.inf) for curve in curves)
    middle = (reached[(len(reached) - 1) // 2] + reached[len(reached) // 2]) / 2
    return None if math.isinf(middle) else middle
