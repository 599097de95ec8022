def cut(begin, end, parts):
    each, extra = divmod(end - begin, parts)
    places = [begin + i * each + min(i, extra) for i in range(parts + 1)]
    return [(a, b) for a, b in zip(places, places[1:]) if b > a]


def rounds(images, devices, microbatches):
    shards = [cut(begin, end, microbatches) for begin, end in cut(0, images, devices)]
    most = max(len(parts) for parts in shards)
    return [
        [(device, *parts[number]) for device, parts in enumerate(shards) if number < len(parts)]
        for number in range(most)
    ]
