def split_by(array, sizes, devices):
    """The rows of array (n, ...) in shards, a list: sizes[i] rows, at least 1, on devices[i]."""
    shards, begin = [], 0
    for size, device in zip(sizes, devices):
        shards.append(array[begin : begin + size].as_in_context(device))
        begin += size
    return shards
