def critical_batch(sizes, steps):
    sizes, steps = np.array(sizes, float), np.array(steps, float)
    # a / steps + b / (sizes steps) is to be 1
    columns = np.stack([1 / steps, 1 / (sizes * steps)], axis=1)
    (fewest, images), *_ = np.linalg.lstsq(columns, np.ones(len(steps)), rcond=None)
    return fewest, images / fewest
