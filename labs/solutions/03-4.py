import numpy as np


def combine(means, variances, counts):
    """Mean and variance, each (channels,), of a batch whose shards have these.

    means, variances: lists, an array (channels,) for each shard; counts: its images.
    """
    shares = np.array(counts) / np.sum(counts)
    mean = sum(share * m for share, m in zip(shares, means))
    # the variance within the shards, and that of their means around the common one
    variance = sum(share * (v + (m - mean) ** 2) for share, m, v in zip(shares, means, variances))
    return mean, variance
