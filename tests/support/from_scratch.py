"""Parameters of the chapter from scratch as Gluon's."""


def as_gluon(params):
    """The eight arrays as Gluon's layers hold them: Dense has (out, in), by hand it is (in,
    out).
    """
    return [
        param.asnumpy().T if param.shape[0] in (800, 128) and param.ndim == 2 else param.asnumpy()
        for param in params
    ]
