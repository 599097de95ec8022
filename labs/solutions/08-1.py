def shard_of_epoch(size, world_size, rank, seed, epoch):
    order = np.random.RandomState([seed, epoch]).permutation(size)
    each = -(-size // world_size)
    # np.resize begins again at the front, as often as it takes
    return np.resize(order, each * world_size)[rank::world_size].tolist()
