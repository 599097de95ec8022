"""Data parallelism by hand, after "Training on Multiple GPUs" in Dive into Deep Learning.

    python -m gluonlab.scratch --gpus 2 --global-batch-size 256 --lr 0.2

`lenet` is the network. `data_parallel` trains one batch on several devices (get_params, allreduce,
split_batch, train_batch). `loop` is a whole training (train). `recipes` contains its settings.
There is no Block, Parameter, Trainer or kvstore.

The chapter uses ``mx.np`` arrays. Here all arrays are ``mx.nd``, as in the rest of gluonlab,
because MXNet 1.9.1 cannot mix the two. An operator of one kind refuses arrays of the other with a
TypeError ("This is a legacy operator which can only accept legacy ndarrays"). That includes
addition and ``copyto``. The switch ``npx.set_np()``, not the array, decides which operators
``split_and_load``, losses and layers of Gluon use (gluon/utils.py, gluon/loss.py, gluon/nn). After
a notebook has turned it on, `gluonlab.train` and the networks of `gluonlab.get_model` fail in the
same process. The switch is also thread-local (util.py), so the thread that prepares batches would
not see it. ``array.as_nd_ndarray()`` and ``array.as_np_ndarray()`` return the other kind of array
for the same memory.
"""
