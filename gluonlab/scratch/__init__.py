"""Data parallelism by hand, after "Training on Multiple GPUs" in Dive into Deep Learning.

    gluonlab scratch --gpus 2 --global-batch-size 256 --lr 0.2

- `lenet`: the network.
- `data_parallel`: training on one batch on several devices.
- `loop`: the training loop over all epochs.
- `recipes`: the settings of the loop.

The code uses no Block, Parameter, Trainer or kvstore. In this package, "the chapter" is "Training
on Multiple GPUs".

The chapter uses ``mx.np`` arrays. Here all arrays are ``mx.nd``, as in the rest of gluonlab,
because MXNet 1.9.1 cannot mix the two. An operator for one kind of array raises a TypeError for the
other kind ("This is a legacy operator which can only accept legacy ndarrays"). Even addition and
``copyto`` raise this error. The switch ``npx.set_np()``, not the array, decides which operators
``split_and_load``, losses and layers of Gluon use (gluon/utils.py, gluon/loss.py, gluon/nn). After
a notebook has turned the switch on, `gluonlab.train` and the networks from `gluonlab.get_model`
fail in the same process. The switch is also thread-local (util.py), so it would have no effect in
the thread that prepares batches. ``array.as_nd_ndarray()`` and ``array.as_np_ndarray()`` return the
other kind of array for the same memory.
"""
