"""The gradients of MXNet's operators, in graphs as runs bind them, are the right ones.

Every operator that has a gradient is compared with numerical differences, or with its own
definition: imperative, hybridized, and bound as a run does it; written and added; of all inputs
together and of each alone; of inputs that are parameters, are computed, or are used twice.
"""

import ctypes

import mxnet as mx
import numpy as np
import pytest
from mxnet import autograd, nd
from mxnet.gluon import nn
from mxnet.operator import get_all_registered_operators
from support.operator_gradients import ROLES, Drawn, error, handle_of, name_of
from support.operators import FAMILIES, NO_GRADIENT, X, above_1, all_cases, case

from gluonlab.errors import ModelError
from gluonlab.models.wrong_gradients import REFUSED, REWRITTEN, TOGETHER, check_gradients

# By differences of float64, and of float32, whose sums are rounded; and by another way of MXNet.
BY_DIFFERENCES = {"float64": 1e-6, "float32": 2e-2}
ALIKE = {"float64": 1e-6, "float32": 1e-4}


def is_crash(case):
    """Whether MXNet itself writes beyond its arrays, or ends the process."""
    return case.op == "SequenceLast" and not case.attrs.get("use_sequence_length")


def is_wrong(case):
    """Whether MXNet's gradient is known to be wrong where all inputs have one."""
    kinds = ("prelu", "selu")
    return case.op in REWRITTEN and case.attrs.get("act_type", kinds[0]) in kinds


def faults(case, roles=ROLES, requests=("write", "add"), hybridized=True):
    """What is wrong about the gradients of an operator, one line for each way."""
    found = []

    def compare(way, gradients, right, limit):
        away = error(gradients, right)
        if not away < limit:
            found.append(f"{case} {way}: {away:.2g}")

    drawn = Drawn(case)
    right, limit = drawn.by_differences(), BY_DIFFERENCES[drawn.dtype]
    exact = case.own is not None
    if exact:
        limit = ALIKE[drawn.dtype]
    if not is_crash(case) and case.attrs.get("act_type") != "selu" and not _is_wrong_at_once(case):
        compare("imperative", drawn.imperative(), right, limit)
        if not exact and drawn.dtype == "float32":
            right = drawn.imperative()
    for dtype in dict.fromkeys((drawn.dtype, "float32")):
        drawn = Drawn(case, dtype=dtype)
        if case.random:  # each type has numbers of its own
            right = drawn.imperative()
        for role in roles:
            graph, wanted = drawn.graph(role), drawn.expected(right, role)
            for request in requests:
                if _is_fixed_gamma(case) and request == "add":
                    continue  # its gradient is zero, and is not added but written
                compare(f"{dtype} {role} {request}", drawn.bound(graph, request), wanted,
                        ALIKE[dtype])  # fmt: skip
            for only in range(len(wanted)) if len(wanted) > 1 and not _needs_all(case, dtype) else ():
                compare(f"{dtype} {role} only {only}", drawn.bound(graph, only=only),
                        [wanted[only]], ALIKE[dtype])  # fmt: skip
            if hybridized and not is_wrong(case) and not _is_loud(case, dtype):
                compare(f"{dtype} {role} hybridized", drawn.hybridized(graph), wanted, ALIKE[dtype])
    return found


def _is_wrong_at_once(case):
    return case.op.startswith(("_npi_where_", "_npi_rarctan2"))


def _needs_all(case, dtype):
    """MXNet's own recurrent layers, which float64 takes; float32 takes oneDNN's."""
    return case.op == "RNN" and dtype == "float64"


def _is_fixed_gamma(case):
    return case.op == "BatchNorm" and case.attrs.get("fix_gamma")


def _is_loud(case, dtype):
    """Whether MXNet raises an error."""
    return case.op == "Deconvolution" and dtype == "float32"


def drawn_cases():
    """Some of each family, and all that are rewritten."""
    cases = [each for each in all_cases() if each.op not in (*REWRITTEN, *TOGETHER, "RNN")]
    rewritten = [each for each in all_cases() if is_wrong(each) or is_crash(each)]
    return rewritten[::3] + cases[5::20]


def test_drawn_operators_have_right_gradients_in_a_run():
    found = [
        fault
        for case in drawn_cases()
        for fault in faults(case, ("inner",), ("write",), hybridized=False)
    ]
    assert not found, "\n".join(found)


@pytest.mark.long
@pytest.mark.parametrize("family", FAMILIES)
def test_every_operator_has_right_gradients(family):
    found = [fault for case in FAMILIES[family]() for fault in faults(case)]
    assert not found, "\n".join(found)
