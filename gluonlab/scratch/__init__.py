"""Data parallelism by hand, after "Training on Multiple GPUs" in Dive into Deep Learning.

    gluonlab scratch --gpus 2 --global-batch-size 256 --lr 0.2

- `lenet`: the network.
- `data_parallel`: training on one batch with several devices.
- `loop`: the training loop over all epochs.
- `recipes`: the settings of the loop.

The code does not use Block, Parameter, Trainer or a kvstore. In this package, "the chapter" means
"Training on Multiple GPUs".

The chapter uses ``mx.np`` arrays. This package uses ``mx.nd`` arrays, like the rest of gluonlab,
because MXNet 1.9.1 cannot mix the two kinds. An operator for one kind of array raises a TypeError
for the other kind ("This is a legacy operator which can only accept legacy ndarrays"). Even
addition and ``copyto`` raise this error. Gluon's ``split_and_load``, losses and layers do not look
at the array, but choose their operators by the switch ``npx.set_np()`` (gluon/utils.py,
gluon/loss.py, gluon/nn). After a notebook has turned the switch on, `gluonlab.train` and the
networks from `gluonlab.get_model` fail in the same process. The switch is also thread-local
(util.py), so it would have no effect in the thread that prepares batches. ``array.as_nd_ndarray()``
and ``array.as_np_ndarray()`` return the other kind of array for the same memory.
"""
