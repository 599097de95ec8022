"""Evaluation of symbol graphs: outputs, gradients and states, by name."""

import numpy as np
from mxnet import nd

from support.devices import device


def evaluate_graph(graph, args, heads, aux=None, dtype=None):
    """Return the outputs in training and in prediction, the gradients, and the states after a step.

    Args:
        graph: the symbol.
        args: NumPy arrays of the arguments, by name.
        heads: the gradients of the outputs.
        aux: NumPy arrays of the states, by name. Missing channels of a state are zeros.
        dtype: the type of the computation, by default that of each array.
    """
    ctx, aux = device(), aux or {}

    def on_device(array):
        return nd.array(array, ctx, dtype=dtype or array.dtype)

    arguments = {name: on_device(array) for name, array in args.items()}
    grads = {name: on_device(np.full(array.shape, np.nan)).astype(arguments[name].dtype)
             for name, array in args.items()}  # fmt: skip
    shapes = graph.infer_shape(**{name: array.shape for name, array in args.items()})[2]
    states = {}
    for (name, array), shape in zip(aux.items(), shapes):
        padded = np.zeros(shape, array.dtype)
        padded[: len(array)] = array
        states[name] = on_device(padded)
    executor = graph.bind(ctx, arguments, args_grad=grads, aux_states=states)
    results = {f"out {n}": out.asnumpy() for n, out in enumerate(executor.forward(is_train=True))}
    executor.backward(list(map(on_device, heads)))
    results.update({f"gradient {name}": grad.asnumpy() for name, grad in grads.items()})
    results.update({f"state {name}": states[name].asnumpy()[: len(aux[name])] for name in aux})
    predicted = enumerate(executor.forward(is_train=False))
    results.update({f"predicted {n}": out.asnumpy() for n, out in predicted})
    return results


def assert_same_results(rewritten, graph, args, heads, aux=None, rtol=1e-5, atol=1e-6):
    """Check that two graphs compute the same; return the results of the second."""
    expected = evaluate_graph(graph, args, heads, aux)
    for name, result in evaluate_graph(rewritten, args, heads, aux).items():
        np.testing.assert_allclose(result, expected[name], rtol=rtol, atol=atol, err_msg=name)
    return expected
