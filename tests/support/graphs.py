"""What a graph computes: outputs, gradients and states, by name."""

import numpy as np
from mxnet import nd

from support.devices import device


def evaluate_graph(graph, args, heads, aux=None, dtype=None):
    """Outputs in training and in prediction, gradients, and the states after one step.

    ``args``, ``aux``: NumPy arrays of the arguments and the states, computed with in this dtype, or
    in their own. A state that has more channels in the graph begins with zeros there.
    """
    ctx, aux = device(), aux or {}

    def on_device(array):
        return nd.array(array, ctx, dtype=dtype or array.dtype)

    own = {name: on_device(each) for name, each in args.items()}
    grads = {name: on_device(np.full(each.shape, np.nan)).astype(own[name].dtype)
             for name, each in args.items()}  # fmt: skip
    shapes = graph.infer_shape(**{name: each.shape for name, each in args.items()})[2]
    states = {}
    for (name, each), shape in zip(aux.items(), shapes):
        wide = np.zeros(shape, each.dtype)
        wide[: len(each)] = each
        states[name] = on_device(wide)
    executor = graph.bind(ctx, own, args_grad=grads, aux_states=states)
    found = {f"out {n}": out.asnumpy() for n, out in enumerate(executor.forward(is_train=True))}
    executor.backward(list(map(on_device, heads)))
    found.update({f"gradient {name}": grad.asnumpy() for name, grad in grads.items()})
    found.update({f"state {name}": states[name].asnumpy()[: len(aux[name])] for name in aux})
    predicted = enumerate(executor.forward(is_train=False))
    found.update({f"predicted {n}": out.asnumpy() for n, out in predicted})
    return found


def assert_same_results(rewritten, graph, args, heads, aux=None, rtol=1e-5, atol=1e-6):
    """Compare all that two graphs compute; return it."""
    wanted = evaluate_graph(graph, args, heads, aux)
    for name, found in evaluate_graph(rewritten, args, heads, aux).items():
        np.testing.assert_allclose(found, wanted[name], rtol=rtol, atol=atol, err_msg=name)
    return wanted
