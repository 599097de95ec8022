def train_batch(net, loss, trainer, images, labels, parts):
    net.collect_params().zero_grad()  # with grad_req "add" nothing else ever empties them
    total = 0
    for begin, end in shard_bounds(len(images), parts):
        with autograd.record():
            part = loss(net(images[begin:end]), labels[begin:end]).sum()
        part.backward()
        total = total + part
    trainer.step(len(images))
    return total / len(images)
