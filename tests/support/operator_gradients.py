"""Gradients of one operator: by each API of MXNet, and by differences."""

import ctypes
from contextlib import ExitStack

import mxnet as mx
import numpy as np
from mxnet import autograd, nd
from mxnet.base import _LIB, OpHandle, c_str, check_call, py_str

from gluonlab.models.rewrite_network import rewrite_graph
from gluonlab.models.symbol_graph import make_node, to_symbol
from gluonlab.parallel.compiled_graph import fix_gradient_accumulation

ROLES = ("inner", "direct", "shared")
EPSILON = {"float64": 1e-6, "float32": 1e-2}


def operator_handle(op):
    handle = OpHandle()
    check_call(_LIB.NNGetOpHandle(c_str(op), ctypes.byref(handle)))
    return handle.value


def operator_name(handle):
    name, empty = ctypes.c_char_p(), [ctypes.c_char_p() for _ in range(2)]
    count, texts = ctypes.c_int(), [ctypes.POINTER(ctypes.c_char_p)() for _ in range(3)]
    check_call(
        _LIB.NNGetOpInfo(
            ctypes.c_void_p(handle), ctypes.byref(name), ctypes.byref(empty[0]),
            ctypes.byref(count), *map(ctypes.byref, texts), ctypes.byref(empty[1]),
        )
    )  # fmt: skip
    return py_str(name.value)


class DrawnCase:
    """A case with random inputs, and random weights of its outputs in the loss."""

    def __init__(self, case, seed=0, dtype=None):
        random = np.random.RandomState(seed)
        self.case = case
        self.dtype = dtype or ("float32" if case.single else "float64")
        self.inputs = [
            each if isinstance(each, np.ndarray) else (each if hasattr(each, "draw") else _numbers(each)).draw(random)
            for each in case.inputs
        ]
        self.random = random
        self.is_learned = [i in case.learned_inputs for i in range(len(self.inputs))]
        with self.numpy_semantics():
            outputs = self.forward(self.inputs)
        used = range(len(outputs)) if case.used is None else case.used
        self.used = [i for i in used if outputs[i].dtype.kind == "f"]
        self.count = len(outputs)
        self.weights = {i: random.uniform(0.5, 1.5, outputs[i].shape) for i in self.used}

    def numpy_semantics(self):
        """Return a context with the shapes of mx.np if the operator belongs to mx.np."""
        stack = ExitStack()
        if self.case.is_np:
            stack.enter_context(mx.util.np_shape(True))
        return stack

    def make_arrays(self, inputs=None):
        values = self.inputs if inputs is None else inputs
        return [self.make_array(each, i) for i, each in enumerate(values)]

    def make_array(self, values, i):
        arguments = self.case.inputs[i]
        own = isinstance(arguments, np.ndarray) and arguments.dtype.kind != "f"
        return nd.array(values, dtype=values.dtype if own else self.dtype)

    def make_states(self):
        return [nd.array(each, dtype=self.dtype) for each in self.case.states]

    def invoke(self, arrays):
        attrs = {key: str(value) for key, value in self.case.attrs.items()}
        arguments = [*arrays, *self.make_states()]
        mx.random.seed(1)
        made = mx.ndarray.register._imperative_invoke(
            operator_handle(self.case.op), arguments, list(attrs), list(attrs.values()), None, False, False
        )
        return made if isinstance(made, list) else [made]

    def forward(self, inputs):
        with autograd.train_mode():
            return [each.asnumpy() for each in self.invoke(self.make_arrays(inputs))]

    def loss(self, inputs):
        outputs = self.forward(inputs)
        return sum(float((outputs[i].astype(float) * self.weights[i]).sum()) for i in self.used)

    def by_differences(self):
        """Return the gradients by central differences, or by the operator's own definition."""
        with self.numpy_semantics():
            if self.case.own is not None:
                weights = [self.weights[i] for i in self.used]
                return self.case.own(weights, *self.inputs)
            gradients = [self._difference_gradient(i) for i in self.case.learned_inputs]
            return [(g + g.T) / 2 for g in gradients] if self.case.symmetric else gradients

    def _difference_gradient(self, number):
        inputs = [each.copy() for each in self.inputs]
        gradient, step = np.zeros(inputs[number].shape), EPSILON[self.dtype]
        for at in np.ndindex(*gradient.shape):
            losses = []
            for sign in (1, -1):
                inputs[number] = self.inputs[number].copy()
                inputs[number][at] += sign * step
                losses.append(self.loss(inputs))
            gradient[at] = (losses[0] - losses[1]) / (2 * step)
        return gradient

    def imperative_gradients(self):
        """Return the gradients of the imperative API."""
        with self.numpy_semantics():
            arrays = self.make_arrays()
            learned = [arrays[i] for i in self.case.learned_inputs]
            for array in learned:
                array.attach_grad()
            with autograd.record():
                outputs = self.invoke(arrays)
                terms = [outputs[i] * self.output_weight(i) for i in self.used]
            autograd.backward(terms)
            return [array.grad.asnumpy() for array in learned]

    def output_weight(self, output):
        return nd.array(self.weights[output], dtype=self.dtype)

    def make_graph(self, role):
        """Return a symbol of the sum of the weighted outputs.

        ``role``: of the operator's inputs. "direct": they are the parameters. "inner": they are
        computed from the parameters. "shared": inner, and another operator also uses them.
        """
        nodes = []

        def add(op, name, inputs=(), **attrs):
            nodes.append(make_node(op, name, inputs, **attrs))
            if op == "null":
                nodes[-1]["attrs"] = {}
            return [len(nodes) - 1, 0, 0]

        entries, others = [], []
        for i in range(len(self.inputs)):
            entry = add("null", f"x{i}")
            if self.is_learned[i] and role != "direct":
                entry = add("_mul_scalar", f"inner{i}", [entry], scalar=1.0)
                if role == "shared":
                    others.append(add("_mul_scalar", f"before{i}", [entry], scalar=0.5))
            entries.append(entry)
        inner = list(entries)
        entries += [add("null", f"state{i}") for i in range(len(self.case.states))]
        out = add(self.case.op, "op", entries, **self.case.attrs)
        heads = []
        for i in self.used:
            heads.append(add("elemwise_mul", f"loss{i}", [[out[0], i, 0], add("null", f"weight{i}")]))
        if role == "shared":
            later_uses = [add("_mul_scalar", f"after{i}", [inner[i]], scalar=0.25) for i in self.case.learned_inputs]
            heads += others + later_uses
        return to_symbol(nodes, heads, {"mxnet_version": ["int", 10901]})

    def expected_gradients(self, gradients, role):
        """Add the gradients of the other users of shared inputs."""
        return [g + 0.75 if role == "shared" else g for g in gradients]

    def named_arguments(self):
        arguments = {f"x{i}": array for i, array in enumerate(self.make_arrays())}
        return {**arguments, **{f"weight{i}": self.output_weight(i) for i in self.used}}

    def bound_gradients(self, graph, request="write", only=None, ours=True):
        """Return the gradients of a bound graph; ``ours``: rewritten as in a run of gluonlab."""
        with self.numpy_semantics():
            arguments = self.named_arguments()
            learned = [f"x{i}" for i in self.case.learned_inputs]
            requested = learned if only is None else [learned[only]]
            kinds = {name: (each.shape, each.dtype) for name, each in arguments.items()}
            if ours:
                graph = rewrite_graph(graph, mx.cpu(), kinds, requested)
                if request == "add":
                    graph = fix_gradient_accumulation(graph, requested)
            gradients = {name: nd.full(arguments[name].shape, 3.0, dtype=arguments[name].dtype) for name in requested}
            names = graph.list_arguments()
            executor = graph.bind(
                mx.cpu(), {name: arguments[name] for name in names}, gradients,
                {name: request if name in requested else "null" for name in names},
                dict(zip(graph.list_auxiliary_states(), self.make_states())),
            )  # fmt: skip
            for _ in range(2):
                for gradient in gradients.values():
                    gradient[:] = 3.0
                for name, state in zip(graph.list_auxiliary_states(), self.make_states()):
                    executor.aux_dict[name][:] = state
                mx.random.seed(1)
                outputs = executor.forward(is_train=True)
                executor.backward([nd.ones_like(each) for each in outputs])
            initial = 3.0 if request == "add" else 0.0
            return [gradients[name].asnumpy() - initial for name in requested]

    def hybridized_gradients(self, graph, static=True, request="write"):
        """Return the gradients of a hybridized block of plain MXNet."""
        with self.numpy_semantics():
            arguments = self.named_arguments()
            learned = [f"x{i}" for i in self.case.learned_inputs]
            states = dict(zip(graph.list_auxiliary_states(), self.make_states()))
            for name in learned:
                arguments[name].attach_grad(request)
                arguments[name].grad[:] = 3.0
            names = graph.list_inputs()
            places = tuple(range(len(names)))
            flags = [("static_alloc", static), ("static_shape", static),
                     ("data_indices", ()), ("param_indices", places)]  # fmt: skip
            compiled = mx.ndarray.CachedOp(graph, flags)
            for _ in range(2):
                for name in learned:
                    arguments[name].grad[:] = 3.0
                for name, state in zip(graph.list_auxiliary_states(), self.make_states()):
                    states[name][:] = state
                mx.random.seed(1)
                with autograd.record():
                    outputs = compiled(*[{**arguments, **states}[name] for name in names])
                    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
                autograd.backward(list(outputs))
            initial = 3.0 if request == "add" else 0.0
            return [arguments[name].grad.asnumpy() - initial for name in learned]


def _numbers(shape):
    from support.operators import Numbers

    return Numbers(tuple(shape))


def relative_error(gradients, expected):
    """Return the largest relative error of gradients."""
    largest = 0.0
    for ours, right in zip(gradients, expected):
        size = max(1.0, float(np.abs(right).max(initial=0.0)))
        error = np.abs(ours.astype(float) - right).max(initial=0.0) / size
        largest = max(largest, float("inf") if np.isnan(error) else float(error))
    return largest
