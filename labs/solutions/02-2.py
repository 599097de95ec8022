def best_factor(gradient, weights, shards, lr):
    """The c for which one update with the rate c * lr ends nearest to k with the rate lr.

    weights: a NumPy array (n,), not to be changed; shards: a list of k shards of b images each
    gradient(weights, shard): an array (n,), the gradient of the mean loss of that shard's images
    """
    small = weights
    for shard in shards:  # one after the other, each from where the last one has ended
        small = small - lr * gradient(small, shard)
    # at the same weights, and of shards of equal size, the mean of means is that of all images
    large = sum(gradient(weights, shard) for shard in shards) / len(shards)
    # what remains is perpendicular: (weights - small - c * lr * large) @ large = 0
    return (weights - small) @ large / (lr * (large @ large))
