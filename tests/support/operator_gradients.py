"""The gradients of one operator: by MXNet in each of its ways, by differences, and in a network."""

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
    """A case with numbers for its inputs, and for the weights of its outputs in the loss."""

    def __init__(self, case, seed=0, dtype=None):
        random = np.random.RandomState(seed)
        self.case = case
        self.dtype = dtype or ("float32" if case.single else "float64")
        self.inputs = [
            each if isinstance(each, np.ndarray)
            else (each if hasattr(each, "draw") else _numbers(each)).draw(random)
            for each in case.inputs
        ]  # fmt: skip
        self.random = random
        self.is_learned = [i in case.learned_inputs for i in range(len(self.inputs))]
        with self.semantics():
            outputs = self.forward(self.inputs)
        used = range(len(outputs)) if case.used is None else case.used
        self.used = [i for i in used if outputs[i].dtype.kind == "f"]
        self.count = len(outputs)
        self.weights = {i: random.uniform(0.5, 1.5, outputs[i].shape) for i in self.used}

    def semantics(self):
        stack = ExitStack()
        if self.case.is_np:
            stack.enter_context(mx.util.np_shape(True))
        return stack

    def arrays(self, inputs=None):
        values = self.inputs if inputs is None else inputs
        return [self.array(each, i) for i, each in enumerate(values)]

    def array(self, values, i):
        given = self.case.inputs[i]
        own = isinstance(given, np.ndarray) and given.dtype.kind != "f"
        return nd.array(values, dtype=values.dtype if own else self.dtype)

    def states(self):
        return [nd.array(each, dtype=self.dtype) for each in self.case.states]

    def invoke(self, arrays):
        attrs = {key: str(value) for key, value in self.case.attrs.items()}
        given = [*arrays, *self.states()]
        mx.random.seed(1)
        made = mx.ndarray.register._imperative_invoke(
            operator_handle(self.case.op),
            given,
            list(attrs),
            list(attrs.values()),
            None,
            False,
            False,
        )
        return made if isinstance(made, list) else [made]

    def forward(self, inputs):
        with autograd.train_mode():
            return [each.asnumpy() for each in self.invoke(self.arrays(inputs))]

    def loss(self, inputs):
        outputs = self.forward(inputs)
        return sum(float((outputs[i].astype(float) * self.weights[i]).sum()) for i in self.used)

    def by_differences(self):
        """The gradients by central differences, or those of the operator's own definition."""
        with self.semantics():
            if self.case.own is not None:
                weights = [self.weights[i] for i in self.used]
                return self.case.own(weights, *self.inputs)
            found = [self._differences(i) for i in self.case.learned_inputs]
            return [(each + each.T) / 2 for each in found] if self.case.symmetric else found

    def _differences(self, place):
        inputs = [each.copy() for each in self.inputs]
        found, step = np.zeros(inputs[place].shape), EPSILON[self.dtype]
        for at in np.ndindex(*found.shape):
            losses = []
            for sign in (1, -1):
                inputs[place] = self.inputs[place].copy()
                inputs[place][at] += sign * step
                losses.append(self.loss(inputs))
            found[at] = (losses[0] - losses[1]) / (2 * step)
        return found

    def imperative(self):
        with self.semantics():
            arrays = self.arrays()
            learned = [arrays[i] for i in self.case.learned_inputs]
            for array in learned:
                array.attach_grad()
            with autograd.record():
                outputs = self.invoke(arrays)
                terms = [outputs[i] * self.array_of(i) for i in self.used]
            autograd.backward(terms)
            return [array.grad.asnumpy() for array in learned]

    def array_of(self, output):
        return nd.array(self.weights[output], dtype=self.dtype)

    def graph(self, role):
        """The sum of the weighted outputs as a symbol.

        ``role``: of the operator's inputs. "direct": they are the parameters. "inner": they are
        computed from them. "shared": they are inner, and something else needs them, too.
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
            heads.append(
                add("elemwise_mul", f"loss{i}", [[out[0], i, 0], add("null", f"weight{i}")])
            )
        if role == "shared":
            again = [add("_mul_scalar", f"after{i}", [inner[i]], scalar=0.25)
                     for i in self.case.learned_inputs]  # fmt: skip
            heads += others + again
        return to_symbol(nodes, heads, {"mxnet_version": ["int", 10901]})

    def expected(self, wanted, role):
        return [each + 0.75 if role == "shared" else each for each in wanted]

    def named(self):
        given = {f"x{i}": array for i, array in enumerate(self.arrays())}
        return {**given, **{f"weight{i}": self.array_of(i) for i in self.used}}

    def bound(self, graph, request="write", only=None, ours=True):
        """The gradients of a bound graph; of ``ours``, as a run of gluonlab binds it."""
        with self.semantics():
            given = self.named()
            learned = [f"x{i}" for i in self.case.learned_inputs]
            asked = learned if only is None else [learned[only]]
            kinds = {name: (each.shape, each.dtype) for name, each in given.items()}
            if ours:
                graph = rewrite_graph(graph, mx.cpu(), kinds, asked)
                if request == "add":
                    graph = fix_gradient_accumulation(graph, asked)
            gradients = {name: nd.full(given[name].shape, 3.0, dtype=given[name].dtype)
                         for name in asked}  # fmt: skip
            names = graph.list_arguments()
            executor = graph.bind(
                mx.cpu(), {name: given[name] for name in names}, gradients,
                {name: request if name in asked else "null" for name in names},
                dict(zip(graph.list_auxiliary_states(), self.states())),
            )  # fmt: skip
            for _ in range(2):
                for gradient in gradients.values():
                    gradient[:] = 3.0
                for name, state in zip(graph.list_auxiliary_states(), self.states()):
                    executor.aux_dict[name][:] = state
                mx.random.seed(1)
                outputs = executor.forward(is_train=True)
                executor.backward([nd.ones_like(each) for each in outputs])
            begun = 3.0 if request == "add" else 0.0
            return [gradients[name].asnumpy() - begun for name in asked]

    def hybridized(self, graph, static=True, request="write"):
        """The gradients of a hybridized block, from plain MXNet."""
        with self.semantics():
            given = self.named()
            learned = [f"x{i}" for i in self.case.learned_inputs]
            states = dict(zip(graph.list_auxiliary_states(), self.states()))
            for name in learned:
                given[name].attach_grad(request)
                given[name].grad[:] = 3.0
            names = graph.list_inputs()
            places = tuple(range(len(names)))
            flags = [("static_alloc", static), ("static_shape", static),
                     ("data_indices", ()), ("param_indices", places)]  # fmt: skip
            compiled = mx.ndarray.CachedOp(graph, flags)
            for _ in range(2):
                for name in learned:
                    given[name].grad[:] = 3.0
                for name, state in zip(graph.list_auxiliary_states(), self.states()):
                    states[name][:] = state
                mx.random.seed(1)
                with autograd.record():
                    outputs = compiled(*[{**given, **states}[name] for name in names])
                    outputs = outputs if isinstance(outputs, (list, tuple)) else [outputs]
                autograd.backward(list(outputs))
            begun = 3.0 if request == "add" else 0.0
            return [given[name].grad.asnumpy() - begun for name in learned]


def _numbers(shape):
    from support.operators import Numbers

    return Numbers(tuple(shape))


def relative_error(found, wanted):
    """How far gradients are from the right ones, relative to these."""
    worst = 0.0
    for ours, right in zip(found, wanted):
        size = max(1.0, float(np.abs(right).max(initial=0.0)))
        away = np.abs(ours.astype(float) - right).max(initial=0.0) / size
        worst = max(worst, float("inf") if np.isnan(away) else float(away))
    return worst
