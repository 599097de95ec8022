def staleness(events):
    updates = []  # (worker, key) of each push so far
    pulled = {}  # (worker, key): how many updates there were when it last pulled
    found = []
    for worker, what, key in events:
        if what == "pull":
            pulled[worker, key] = len(updates)
        else:
            since = updates[pulled.get((worker, key), 0) :]
            found.append(sum(other != worker and its == key for other, its in since))
            updates.append((worker, key))
    return found
