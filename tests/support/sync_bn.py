"""A network with several kinds of BatchNorm."""

from mxnet.gluon import nn

SHAPE = (2, 8, 8)


class SyncBatchNormNet(nn.HybridBlock):
    """A network with BatchNorm over images, with and without gamma and beta, and over units."""

    def __init__(self):
        super().__init__()
        with self.name_scope():
            self.first = nn.HybridSequential()
            self.first.add(
                nn.Conv2D(6, 3, padding=1, use_bias=False), nn.BatchNorm(momentum=0.7), nn.Activation("relu")
            )
            self.second = nn.HybridSequential()
            self.second.add(
                nn.Conv2D(6, 3, padding=1, use_bias=False), nn.BatchNorm(scale=False, center=False, epsilon=1e-3)
            )
            self.units = nn.HybridSequential()
            self.units.add(nn.Dense(7, use_bias=False), nn.BatchNorm())
            self.scores = nn.Dense(10)

    def hybrid_forward(self, F, x):
        x = self.first(x)
        return self.scores(F.Activation(self.units(self.second(x) + x), act_type="tanh"))
