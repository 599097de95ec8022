from gluonlab.data.loading.split_batch import shard_bounds


def accumulate(net, loss, trainer, images, labels, parts):
    net.collect_params().zero_grad()  # "add" adds to whatever is there
    for begin, end in shard_bounds(len(images), parts):
        with autograd.record():
            total = loss(net(images[begin:end]), labels[begin:end]).sum()  # a sum: no image counts more than another
        total.backward()
    trainer.step(len(images))  # divides by the images of the whole batch
