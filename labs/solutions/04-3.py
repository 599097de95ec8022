def owners(sizes, devices):
    """The device, 0 to devices - 1, that sums each parameter, of sizes[i] numbers."""
    load = [0] * devices
    chosen = [0] * len(sizes)
    for param in sorted(range(len(sizes)), key=lambda param: -sizes[param]):
        lightest = load.index(min(load))
        chosen[param] = lightest
        load[lightest] += sizes[param]
    return chosen
