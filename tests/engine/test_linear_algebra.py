"""MXNet's operators that call BLAS and LAPACK compute NumPy's results in float64.

On ARM, these functions come from another OpenBLAS than on x86-64 (`gluonlab.engine.arm_libraries`).
"""

import mxnet as mx
import numpy as np
import pytest
from mxnet import nd


@pytest.fixture(params=[1, 5, 40], ids="{0}x{0}".format)
def positive_definite(request):
    random = np.random.RandomState(0).rand(request.param, request.param)
    return random @ random.T / request.param + np.eye(request.param)


@pytest.fixture(params=["float32", "float64"])
def check(request, positive_definite):
    """Compare the results of an operator on the matrix with the expected results."""
    tolerance = {"float32": 1e-4, "float64": 1e-10}[request.param]
    matrix = nd.array(positive_definite, dtype=request.param)
    exact = matrix.asnumpy().astype("float64")

    def check_operator(operator, *expected):
        results = operator(matrix)
        results = results if isinstance(results, (list, tuple)) else [results]
        for result, correct in zip(results, expected):
            np.testing.assert_allclose(result.asnumpy(), correct, rtol=tolerance, atol=tolerance * np.abs(exact).max())

    check_operator.exact = exact
    return check_operator


def test_products(check):
    a, scalar = check.exact, 0.5
    check(lambda x: nd.dot(x, x), a @ a)
    check(lambda x: nd.batch_dot(x.expand_dims(0), x.expand_dims(0))[0], a @ a)
    for transpose_a in (False, True):
        for transpose_b in (False, True):
            flags = {"transpose_a": transpose_a, "transpose_b": transpose_b}
            product = (a.T if transpose_a else a) @ (a.T if transpose_b else a)
            check(lambda x, flags=flags: nd.linalg.gemm2(x, x, **flags), product)
            check(lambda x, flags=flags: nd.linalg.gemm(x, x, x, beta=scalar, **flags), product + scalar * a)
    check(nd.linalg.syrk, a @ a.T)


@pytest.mark.parametrize("transpose", [False, True])
@pytest.mark.parametrize("rightside", [False, True])
@pytest.mark.parametrize("lower", [False, True])
def test_products_and_systems_with_triangular_matrices(check, transpose, rightside, lower):
    a = check.exact
    triangle = np.tril(a) if lower else np.triu(a)
    factor = triangle.T if transpose else triangle
    options = {"transpose": transpose, "rightside": rightside, "lower": lower}
    check(lambda x: nd.linalg.trmm(x, x, **options), a @ factor if rightside else factor @ a)
    solution = np.linalg.solve(factor.T, a.T).T if rightside else np.linalg.solve(factor, a)
    check(lambda x: nd.linalg.trsm(x, x, **options), solution)


def test_factors_and_inverses(check):
    a = check.exact
    check(nd.linalg.potrf, np.linalg.cholesky(a))
    check(lambda x: nd.linalg.potri(nd.linalg.potrf(x)), np.linalg.inv(a))
    check(nd.linalg.inverse, np.linalg.inv(a))
    check(lambda x: nd.linalg.slogdet(x), *np.linalg.slogdet(a))
    check(lambda x: nd.linalg.syevd(x)[1], np.linalg.eigvalsh(a))
    check(lambda x: nd.dot(*nd.linalg.gelqf(x)[::-1]), a)


def test_operators_of_mx_np(check):
    a = check.exact
    check(lambda x: mx.np.linalg.solve(x.as_np_ndarray(), x.as_np_ndarray()), np.eye(len(a)))
    check(lambda x: mx.np.linalg.inv(x.as_np_ndarray()), np.linalg.inv(a))
    check(lambda x: mx.np.linalg.svd(x.as_np_ndarray())[1], np.linalg.svd(a)[1])
    check(lambda x: mx.np.linalg.eigvalsh(x.as_np_ndarray()), np.linalg.eigvalsh(a))
