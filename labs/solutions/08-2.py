def main(dist, train_set, val_set, world_size, epochs):
    """Train a model in `world_size` processes."""

    def train(rank, world_size):
        dist.init_process_group("gloo", world_size=world_size, rank=rank)
        model = dist.DistributedDataParallel(dist.Model())
        sampler = dist.DistributedSampler(train_set, num_replicas=world_size, rank=rank)
        loader = dist.DataLoader(train_set, batch_size=4, sampler=sampler)
        for epoch in range(epochs):
            sampler.set_epoch(epoch)
            for x, y in loader:
                model.backward(x, y)
                model.step(lr=0.5)
            if rank == 0:
                accuracy = model.score(val_set)
                dist.log(f"epoch {epoch}: accuracy {accuracy:.2f}")

    dist.spawn(train, nprocs=world_size, args=(world_size,))
