def part_weights(sizes):
    return [size / sum(sizes) for size in sizes]
