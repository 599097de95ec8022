def tune(steps_with, first, limit):
    best, fewest = first, steps_with(first, limit)
    for factor in (2, 0.5):
        rate = first * factor
        while True:
            steps = steps_with(rate, fewest)
            if steps is None or steps >= fewest:
                break
            best, fewest, rate = rate, steps, rate * factor
        if best != first:  # what grows in one direction falls in the other
            break
    return best
