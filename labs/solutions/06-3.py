from gluonlab.data.loading.split_batch import shard_bounds


def accumulate_means(net, mean_loss, trainer, x, labels, real, parts):
    net.collect_params().zero_grad()  # "add" adds to whatever is there
    words = float(real.sum().asscalar())  # of the whole batch
    for begin, end in shard_bounds(len(x), parts):
        own = float(real[begin:end].sum().asscalar())
        if own == 0:  # padding alone: the mean of nothing is nan
            continue
        with autograd.record():
            mean = mean_loss(net(x[begin:end]), labels[begin:end], real[begin:end])
            share = mean * (own / words)
        share.backward()
    trainer.step(1)  # the gradients are those of a mean
