import numpy as np


def combine(means, variances, counts):
    """Return the mean and the variance of the whole batch, each (channels,), from its shards.

    means, variances: lists with a NumPy array (channels,) for each shard
    counts: a list with the number of images of each shard
    """
    shares = np.array(counts) / np.sum(counts)
    mean = sum(share * m for share, m in zip(shares, means))
    # the variance within the shards, and that of their means around the common one
    variance = sum(share * (v + (m - mean) ** 2) for share, m, v in zip(shares, means, variances))
    return mean, variance
