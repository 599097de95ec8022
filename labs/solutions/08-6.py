def places(hosts):
    words = hosts.split()
    taken = {}  # how many ranks each host has so far
    found = []
    for host, slots in zip(words[::2], words[1::2]):
        for _ in range(int(slots)):
            found.append((host, taken.get(host, 0)))
            taken[host] = taken.get(host, 0) + 1
    return found
