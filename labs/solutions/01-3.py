def split_by(array, sizes, devices):
    """Return a list of shards of array (n, ...): sizes[i] >= 1 rows on devices[i]."""
    shards, begin = [], 0
    for size, device in zip(sizes, devices):
        shards.append(array[begin : begin + size].as_in_context(device))
        begin += size
    return shards
