def best_factor(gradient, weights, shards, lr):
    """Return the factor c with which one large update ends closest to k small updates.

    The large update uses the learning rate c * lr, and each small update uses the learning rate lr.

    weights: a NumPy array (n,); do not change it
    shards: a list of k shards with b images each
    gradient(weights, shard): returns an array (n,), the gradient of the mean loss of the shard
    """
    small = weights
    for shard in shards:  # one after the other, each from where the last one has ended
        small = small - lr * gradient(small, shard)
    # at the same weights, and of shards of equal size, the mean of means is that of all images
    large = sum(gradient(weights, shard) for shard in shards) / len(shards)
    # what remains is perpendicular: (weights - small - c * lr * large) @ large = 0
    return (weights - small) @ large / (lr * (large @ large))
