def make_replicas(ctxs, seed=0):
    mx.random.seed(seed)
    drawn = []
    for shape in SHAPES:  # drawn once, on the host, then copied: no device has numbers of its own
        fan_in = int(np.prod(shape[1:])) if len(shape) == 4 else shape[0]
        drawn.append(nd.random.normal(0, (2 / fan_in) ** 0.5, shape) if len(shape) > 1 else nd.zeros(shape))
    return [get_params(drawn, ctx) for ctx in ctxs]
