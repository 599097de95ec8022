def split_by(array, sizes, devices):
    """Cut array (n, ...) along its first axis: sizes[i] rows, each at least 1, n in all, on devices[i]; a list of arrays in that order."""
    shards, begin = [], 0
    for size, device in zip(sizes, devices):
        shards.append(array[begin : begin + size].as_in_context(device))
        begin += size
    return shards
