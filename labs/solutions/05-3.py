def parts_of(w1, b1, w2, b2, devices):
    units = np.array_split(np.arange(len(b1)), devices)
    return [
        (w1[own], b1[own], w2[:, own], b2 if device == 0 else np.zeros_like(b2)) for device, own in enumerate(units)
    ]
