"""Data parallelism by hand, after "Training on Multiple GPUs" in Dive into Deep Learning.

    python -m gluonlab.scratch --gpus 2 --global-batch-size 256 --lr 0.2

`lenet` is the network, `data_parallel` one batch on several devices (get_params, allreduce,
split_batch, train_batch), `loop` a whole training (train), `recipes` the numbers that it is given.
No Block, no Parameter, no Trainer, no kvstore.

The chapter computes with ``mx.np`` arrays; here everything is ``mx.nd``, as in the rest of
gluonlab, because MXNet 1.9.1 does not let the two meet. An operator of one kind refuses arrays of
the other with a TypeError ("This is a legacy operator which can only accept legacy ndarrays"),
addition and ``copyto`` between the two included. Gluon decides by the switch ``npx.set_np()``, not
by the array, which operators ``split_and_load``, losses and layers use (gluon/utils.py,
gluon/loss.py, gluon/nn): once a notebook has turned it on, `gluonlab.train` and the networks of
`gluonlab.get_model` fail in the same process. And the switch belongs to a thread (util.py keeps it
in a threading.local): the one that prepares batches ahead would not see it.
``array.as_nd_ndarray()`` and ``array.as_np_ndarray()`` make the other kind of the same memory.
"""
