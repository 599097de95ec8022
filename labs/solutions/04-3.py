def owners(sizes, devices):
    """For each parameter, of sizes[i] numbers, the device that sums it: a list of numbers from 0 to devices - 1."""
    load = [0] * devices
    chosen = [0] * len(sizes)
    for param in sorted(range(len(sizes)), key=lambda param: -sizes[param]):
        lightest = load.index(min(load))
        chosen[param] = lightest
        load[lightest] += sizes[param]
    return chosen
