def train_until(net, loss, trainer, devices, images, labels, batch_per_device, lr, good_enough, limit):
    size = len(devices) * batch_per_device
    trainer.set_learning_rate(len(devices) * lr)
    begin = 0
    for step in range(1, limit + 1):
        x, y = images[begin : begin + size], labels[begin : begin + size]
        shards = zip(
            gluon.utils.split_and_load(x, devices, even_split=False),
            gluon.utils.split_and_load(y, devices, even_split=False),
        )
        with autograd.record():
            losses = [loss(net(x_part), y_part) for x_part, y_part in shards]
        autograd.backward(losses)
        trainer.step(len(x))
        if good_enough(net):
            return step
        begin = begin + size if begin + size < len(images) else 0
    return None
