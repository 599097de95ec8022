"""Table of MXNet's operators that have a gradient, with small inputs and attributes.

The names are those in MXNet's library, which include mx.np and mx.npx: ``npx.leaky_relu`` is
LeakyReLU, ``np.add`` is _npi_add.
"""

from dataclasses import dataclass, field
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np


@dataclass(frozen=True)
class Numbers:
    """Distinct nonzero numbers from ``low`` to ``high`` in a random order."""

    shape: Tuple[int, ...]
    low: float = -1.93
    high: float = 1.87

    def draw(self, random: np.random.RandomState) -> np.ndarray:
        count = int(np.prod(self.shape, dtype=int))
        places = (random.permutation(count) + 0.3 + 0.1 * random.rand(count)) / max(count, 1)
        return (self.low + (self.high - self.low) * places).reshape(self.shape)


def above_0(*shape):
    return Numbers(shape, 0.4, 1.9)


def above_1(*shape):
    return Numbers(shape, 1.15, 2.7)


def within_1(*shape):
    return Numbers(shape, -0.85, 0.8)


@dataclass
class Matrices:
    """Matrices of a kind: positive "definite", "lower" triangular, or "regular"."""

    shape: Tuple[int, ...]
    kind: str = "definite"

    def draw(self, random: np.random.RandomState) -> np.ndarray:
        size = self.shape[-1]
        values = random.uniform(-0.5, 0.5, self.shape)
        if self.kind == "definite":
            return values @ np.swapaxes(values, -1, -2) + np.diag(1.0 + np.arange(size))
        if self.kind == "lower":
            return np.tril(values, -1) + np.diag(1.0 + np.arange(size))
        return values + np.diag(1.5 + np.arange(size))


def names(text):
    return text.split()


def const(values, dtype=None):
    """Return an input without a gradient: positions, labels, lengths."""
    return np.array(values, dtype=dtype)


@dataclass(frozen=True)
class Case:
    """An operator with attributes and inputs.

    Attributes:
        op: the name of the operator.
        inputs: shapes, Numbers, Matrices, or constant arrays.
        attrs: the attributes of the operator.
        learned: the inputs that have a gradient, by default all but the constant ones.
        used: the outputs that have a gradient.
        states: auxiliary arrays.
        own: returns the gradients of an operator that defines its own.
        single: whether the operator computes in float32 only.
        symmetric: whether the input and its gradient are symmetric matrices.
        random: whether its random numbers depend on the type.
    """

    op: str
    inputs: Sequence[Any]
    attrs: Dict[str, Any] = field(default_factory=dict)
    learned: Optional[Sequence[int]] = None
    used: Optional[Sequence[int]] = None
    states: Sequence[Any] = ()
    own: Optional[Callable[..., List[np.ndarray]]] = None
    single: bool = False
    symmetric: bool = False
    random: bool = False

    def __str__(self) -> str:
        given = [f"{key}={value}" for key, value in self.attrs.items() if key != "num_args"]
        shapes = [str(getattr(each, "shape", each)) for each in self.inputs]
        return f"{self.op}({', '.join([*shapes, *given])})".replace(" ", "")

    @property
    def is_np(self) -> bool:
        return self.op.startswith(("_np", "_npi", "_npx"))

    @property
    def learned_inputs(self) -> List[int]:
        if self.learned is not None:
            return list(self.learned)
        return [i for i, each in enumerate(self.inputs) if not isinstance(each, np.ndarray)]


def case(op, *inputs, **attrs):
    own = {
        name: attrs.pop(name)
        for name in ("learned", "used", "states", "own", "single", "symmetric", "random")
        if name in attrs
    }
    return Case(op, inputs, attrs, **own)


def nary(op, *inputs, **attrs):
    """Return the case of an operator that takes any number of inputs."""
    return case(op, *inputs, num_args=len(inputs), **attrs)


X = (2, 3, 2)
IMAGE = (2, 3, 5, 4)


def _unary_cases() -> List[Case]:
    both = names("""abs sign rint ceil floor round trunc fix square cbrt exp expm1 sin cos
        sinh cosh tanh arctan arcsinh degrees radians erf relu sigmoid softsign negative
        reciprocal rcbrt _copy
        tan ones_like zeros_like make_loss _contrib_round_ste _contrib_sign_ste _npi_absolute
        _npi_arcsinh _npi_arctan _npi_cbrt _npi_ceil _npi_cos _npi_cosh _npi_degrees _npi_exp
        _npi_expm1 _npi_fix _npi_floor _npi_negative _npi_radians _npi_reciprocal _npi_rint
        _npi_sign _npi_sin _npi_sinh _npi_square _npi_tan _npi_tanh _npi_trunc _npx_relu
        _npx_sigmoid _np_copy _contrib_div_sqrt_dim logical_not BlockGrad
        _npi_nan_to_num""")
    positive = names("""sqrt rsqrt log log10 log2 log1p gamma gammaln _npi_sqrt _npi_log _npi_log10
        _npi_log2 _npi_log1p""")
    small = names("""arcsin arccos arctanh erfinv _npi_arcsin _npi_arccos _npi_arctanh""")
    zero = {"_contrib_round_ste": _pass_gradient, "_contrib_sign_ste": _pass_gradient, "BlockGrad": _zero_gradient}
    zero["make_loss"] = _ones_gradient
    found = [case(op, X, **({"own": zero[op]} if op in zero else {})) for op in both]
    found += [case(op, above_0(*X)) for op in positive] + [case(op, within_1(*X)) for op in small]
    found += [case(op, above_1(*X)) for op in ("arccosh", "_npi_arccosh")]
    return found


def _pass_gradient(weights, *inputs):
    return [weights[0]]


def _zero_gradient(weights, *inputs):
    return [np.zeros_like(inputs[0])]


def _ones_gradient(weights, *inputs):
    return [np.ones_like(inputs[0])]


def _scalar_cases() -> List[Case]:
    found = []
    for op in names("""_plus_scalar _minus_scalar _rminus_scalar _mul_scalar _div_scalar _rdiv_scalar
            _mod_scalar _rmod_scalar _rpower_scalar _hypot_scalar _maximum_scalar _minimum_scalar
            _equal_scalar _greater_scalar _scatter_plus_scalar _scatter_minus_scalar
            _npi_add_scalar _npi_subtract_scalar _npi_rsubtract_scalar _npi_multiply_scalar
            _npi_true_divide_scalar _npi_rtrue_divide_scalar _npi_mod_scalar _npi_rmod_scalar
            _npi_rpower_scalar  _npi_arctan2_scalar
            _npi_rarctan2_scalar _npi_ldexp_scalar _npi_rldexp_scalar"""):
        found.append(case(op, X, scalar=1.37))
    found += [case(op, above_0(*X), scalar=1.7) for op in ("_power_scalar", "_npi_power_scalar")]
    found += [case("_power_scalar", X, scalar=2.0), case("_power_scalar", X, scalar=3.0)]
    found += [
        case("clip", X, a_min=-0.7, a_max=0.8),
        case("smooth_l1", X, scalar=0.8),
        case("hard_sigmoid", X, alpha=0.3, beta=0.5),
        case("_contrib_quadratic", X, a=0.5, b=-1.0, c=2.0),
        case("_contrib_gradientmultiplier", X, scalar=-0.5, own=_scaled_gradient),
        case("Cast", X, dtype="float32", single=True),
        case("amp_cast", X, dtype="float32", single=True),
        case("amp_multicast", X, X, num_outputs=2, single=True),
        case("_npi_around", X, decimals=0),
    ]
    return found


def _scaled_gradient(weights, *inputs):
    return [-0.5 * weights[0]]


def _binary_cases() -> List[Case]:
    found = []
    for op in names("""elemwise_add elemwise_sub elemwise_mul _maximum _minimum _hypot _mod
            _equal _greater"""):
        found.append(case(op, X, X))
    for op in ("elemwise_div", "_scatter_elemwise_div", "_npi_true_divide", "_npi_mod"):
        found.append(case(op, X, above_0(*X)))
    found += [case("_power", above_0(*X), X), case("_npi_power", above_0(2, 3), (1, 3))]
    for op in names("""broadcast_add broadcast_sub broadcast_mul broadcast_maximum broadcast_minimum
            broadcast_hypot broadcast_greater _npi_add _npi_subtract _npi_multiply _npi_copysign
            _npi_arctan2 _npi_hypot _npi_ldexp"""):
        found += [case(op, X, (2, 1, 2)), case(op, (1, 3, 1), X), case(op, X, X)]
    for op in ("broadcast_div", "broadcast_mod"):
        found += [case(op, X, above_0(2, 1, 2)), case(op, (1, 3, 1), above_0(*X))]
    found += [
        case("broadcast_power", above_0(*X), (1, 3, 1)),
        case("_npi_add", (2, 3), (3,)),
        case("_npi_multiply", (3,), (2, 3)),
        case("_npi_mod", (1, 3), above_0(2, 3)),
        case("_npi_true_divide", (3,), above_0(2, 3)),
        nary("add_n", X, X, X),
        nary("add_n", X, X, X, X, X),
        nary("add_n", IMAGE, IMAGE),
        case("_identity_with_attr_like_rhs", X, const(np.ones(X))),
        case("where", const([[1.0, 0.0], [0.0, 1.0]]), (2, 2), (2, 2)),
        case("where", const([1.0, 0.0]), (2, 3), (2, 3)),
        case("_npi_where", const([[1.0, 0.0], [0.0, 1.0]]), (2, 2), (1, 2)),
        case("_npi_where_lscalar", const([[1.0, 0.0], [0.0, 1.0]]), (2, 2), scalar=2.0),
        case("_npi_where_rscalar", const([[1.0, 0.0], [0.0, 1.0]]), (2, 2), scalar=2.0),
    ]
    return found


def _reduction_cases() -> List[Case]:
    found = []
    for op in names("sum mean prod nansum nanprod max min"):
        found += [case(op, X), case(op, X, axis=1), case(op, X, axis=(0, 2), keepdims=True)]
        found += [case(op, X, axis=1, exclude=True)]
    for op in names("_np_sum _npi_mean _np_prod _np_max _np_min"):
        found += [case(op, X), case(op, X, axis=1), case(op, X, axis=(0, 2), keepdims=True)]
    for order in (1, 2):
        found += [case("norm", X, ord=order), case("norm", X, ord=order, axis=1)]
        found += [case("norm", X, ord=order, axis=(0, 2), keepdims=True)]
    found += [
        case("moments", X, axes=(0, 2)),
        case("moments", X, axes=(1,), keepdims=True),
        case("moments", X, axes=(1,), used=[0]),
        case("moments", X, axes=(1,), used=[1]),
        case("L2Normalization", X, mode="instance"),
        case("L2Normalization", X, mode="channel"),
        case("L2Normalization", X, mode="spatial"),
        case("_npi_norm", (2, 3), ord=2, axis="None", keepdims=False, flag=-2),
        case("_npi_norm", X, ord=3, axis=(1,), keepdims=False, flag=-1),
        case("_npi_average", (2, 3), above_0(2, 3), weighted=True, used=[0]),
        case("_npi_average", (2, 3), above_0(3), axis=1, weighted=True, used=[0]),
        case("_npi_average", (2, 3), axis=0, weighted=False, used=[0]),
        case("_np_cumsum", X, axis=1),
        case("_np_cumsum", X),
        case("_np_trace", (3, 4)),
        case("_npi_diff", (2, 5), n=1),
        case("_npi_diff", (2, 5), n=2),
        case("_npi_ediff1d", (5,), to_begin_arr_given=False, to_end_arr_given=False),
        case("_npi_ediff1d", (5,), (2,), (1,), to_begin_arr_given=True, to_end_arr_given=True),
        case("_npi_polyval", (4,), (2, 3)),
    ]
    return found


def _shape_cases() -> List[Case]:
    return [
        case("Reshape", X, shape=(3, -1)),
        case("reshape_like", X, const(np.ones((3, 4)))),
        case("Flatten", X),
        case("expand_dims", X, axis=1),
        case("squeeze", (2, 1, 3), axis=1),
        case("transpose", X, axes=(2, 0, 1)),
        case("transpose", X),
        case("SwapAxis", X, dim1=0, dim2=2),
        nary("Concat", (2, 3), (2, 1), dim=1),
        nary("Concat", IMAGE, (2, 2, 5, 4), dim=1),
        nary("Concat", (2, 16, 2, 2), (2, 16, 2, 2), dim=1),
        nary("_rnn_param_concat", (3,), (2,), dim=0),
        nary("stack", X, X, axis=1),
        case("SliceChannel", X, num_outputs=3, axis=1),
        case("SliceChannel", X, num_outputs=3, axis=1, squeeze_axis=True),
        case("_split_v2", X, indices=(0, 1), axis=1, sections=0),
        case("_split_v2", X, indices=(), axis=2, sections=2, squeeze_axis=True),
        case("slice", X, begin=(0, 1), end=(2, 3)),
        case("slice", (5, 4), begin=(4, 0), end=(0, 4), step=(-2, 3)),
        case("slice_axis", X, axis=1, begin=1, end=3),
        case("slice_like", X, const(np.ones((1, 2, 2)))),
        case("tile", X, reps=(2, 1, 2)),
        case("tile", (2, 3), reps=(2, 1, 2)),
        case("repeat", X, repeats=2, axis=1),
        case("repeat", X, repeats=2),
        case("reverse", X, axis=(0, 2)),
        case("Pad", IMAGE, mode="edge", pad_width=(0, 0, 0, 0, 1, 2, 2, 1)),
        case("Pad", IMAGE, mode="constant", pad_width=(0, 0, 0, 0, 1, 2, 2, 1), constant_value=1.5),
        case("Pad", IMAGE, mode="reflect", pad_width=(0, 0, 0, 0, 1, 2, 2, 1)),
        nary("Crop", IMAGE, offset=(1, 1), h_w=(3, 2), single=True),
        nary("Crop", IMAGE, const(np.ones((2, 3, 3, 2))), center_crop=True, single=True),
        case("broadcast_axis", (2, 1, 2), axis=(1,), size=(3,)),
        case("broadcast_to", (2, 1, 2), shape=(2, 3, 2)),
        case("broadcast_like", (2, 1, 2), const(np.ones(X))),
        case("depth_to_space", (1, 8, 2, 2), block_size=2),
        case("space_to_depth", (1, 2, 4, 2), block_size=2),
        case("diag", (3, 4), k=1),
        case("diag", (3,)),
        case("im2col", (1, 2, 4, 3), kernel=(2, 2), stride=(2, 1), pad=(1, 0)),
        case("col2im", (1, 8, 4), output_size=(3, 3), kernel=(2, 2)),
        case("cast_storage", X, stype="default"),
        nary("UpSampling", IMAGE, scale=2, sample_type="nearest"),
        nary("UpSampling", (1, 2, 4, 4), (1, 2, 2, 2), scale=2, sample_type="nearest"),
        nary("UpSampling", (1, 2, 4, 4), (1, 2, 2, 2), scale=2, sample_type="nearest", multi_input_mode="sum"),
        nary("UpSampling", (1, 2, 3, 3), (2, 1, 4, 4), scale=2, sample_type="bilinear", num_filter=2),
        case("_np_reshape", X, newshape=(3, 4)),
        case("_npx_reshape", X, newshape=(3, 4)),
        case("_np_squeeze", (2, 1, 3), axis=1),
        case("_np_transpose", X, axes=(2, 0, 1)),
        case("_np_moveaxis", X, source=(0,), destination=(2,)),
        case("_np_roll", X, shift=(1,), axis=(1,)),
        case("_npi_flip", X, axis=(0, 2)),
        nary("_npi_concatenate", (2, 3), (2, 1), axis=1),
        nary("_npi_stack", X, X, axis=1),
        nary("_npi_vstack", (2, 3), (1, 3)),
        case("_npi_hsplit", (2, 4), indices=(), axis=1, sections=2),
        case("_npi_dsplit", (2, 2, 4), indices=(), axis=2, sections=2),
        case("_npi_broadcast_to", (3,), shape=(2, 3)),
        case("_npi_tril", (3, 4), k=0),
        case("_np_diag", (3, 4), k=1),
        case("_np_diagflat", (3,)),
        case("_np_diagonal", (3, 4)),
        case("_npi_pad", (2, 3), pad_width=((1, 1), (0, 2)), mode="constant"),
    ]


def _indexing_cases() -> List[Case]:
    rows = const([[0.0, 2.0], [1.0, 0.0]])
    return [
        case("take", (3, 4), rows),
        case("take", (3, 4), const([2.0, 7.0, -1.0]), axis=1, mode="clip"),
        case("take", (3, 4), const([2.0, 7.0, -1.0]), axis=1, mode="wrap"),
        case("pick", (3, 4), const([1.0, 0.0, 3.0]), axis=1),
        case("pick", (3, 4), const([1.0, 0.0, 2.0, 2.0]), axis=0, keepdims=True, mode="wrap"),
        case("gather_nd", (3, 4), const([[0.0, 2.0, 2.0], [1.0, 3.0, 3.0]])),
        case("scatter_nd", (3,), const([[0.0, 2.0, 1.0], [1.0, 3.0, 0.0]]), shape=(3, 4)),
        case("Embedding", const([[0.0, 2.0], [2.0, 1.0]]), (3, 4), input_dim=3, output_dim=4),
        case("SequenceLast", (4, 2, 3), const([3.0, 2.0]), use_sequence_length=True),
        case("SequenceLast", (4, 2, 3)),
        case("SequenceMask", (4, 2, 3), const([3.0, 2.0]), use_sequence_length=True, value=1.5),
        case("SequenceMask", (2, 4, 3), const([3.0, 2.0]), use_sequence_length=True, axis=1),
        case("SequenceReverse", (4, 2, 3), const([3.0, 2.0]), use_sequence_length=True),
        case("SequenceReverse", (4, 2, 3)),
        case("_contrib_index_copy", (4, 2), const([1, 3], "int64"), (2, 2)),
        case("topk", (2, 5), k=2, ret_typ="value", axis=1),
        case("topk", (2, 5), k=2, ret_typ="both", axis=1, used=[0]),
        case("sort", (2, 5), axis=1),
    ]


def _product_cases() -> List[Case]:
    square = Matrices((3, 3), "regular")
    return [
        case("dot", (2, 3), (3, 4)),
        case("dot", (3, 2), (4, 3), transpose_a=True, transpose_b=True),
        case("dot", (3,), (3,)),
        case("dot", X, (2, 4)),
        case("batch_dot", (2, 2, 3), (2, 3, 4)),
        case("batch_dot", (2, 3, 2), (2, 4, 3), transpose_a=True, transpose_b=True),
        case("_linalg_gemm", (2, 3), (3, 4), (2, 4), alpha=0.5, beta=2.0),
        case("_linalg_gemm", (3, 2), (4, 3), (2, 4), transpose_a=True, transpose_b=True),
        case("_linalg_gemm2", (2, 3), (3, 4), alpha=0.5),
        case("_linalg_gemm2", (2, 2, 3), (2, 4, 3), transpose_b=True),
        case("_linalg_syrk", (2, 3), alpha=0.5),
        case("_linalg_syrk", (2, 3), transpose=True),
        case("_linalg_potrf", Matrices((3, 3)), symmetric=True),
        case("_linalg_potri", Matrices((3, 3), "lower")),
        case("_linalg_trmm", Matrices((3, 3), "lower"), (3, 2)),
        case("_linalg_trmm", Matrices((3, 3), "lower"), (2, 3), rightside=True, transpose=True),
        case("_linalg_trsm", Matrices((3, 3), "lower"), (3, 2)),
        case("_linalg_trsm", Matrices((3, 3), "lower"), (2, 3), rightside=True, transpose=True),
        case("_linalg_sumlogdiag", Matrices((3, 3))),
        case("_linalg_extractdiag", (3, 3), offset=1),
        case("_linalg_makediag", (3,), offset=-1),
        case("_linalg_extracttrian", (3, 3)),
        case("_linalg_maketrian", (6,)),
        case("_linalg_gelqf", (2, 3)),
        case("_linalg_syevd", Matrices((3, 3)), used=[1], symmetric=True),
        case("_linalg_inverse", square),
        case("_linalg_inverse", Matrices((2, 3, 3), "regular")),
        case("_linalg_det", square, used=[0]),
        case("_linalg_slogdet", square, used=[1]),
        case("_contrib_interleaved_matmul_selfatt_qk", (3, 2, 12), heads=2, single=True),
        case("_contrib_interleaved_matmul_selfatt_valatt", (3, 2, 12), (4, 3, 3), heads=2, single=True),
        case("_contrib_interleaved_matmul_encdec_qk", (3, 2, 4), (5, 2, 8), heads=2, single=True),
        case("_contrib_interleaved_matmul_encdec_valatt", (5, 2, 8), (4, 3, 5), heads=2, single=True),
        case("_np_dot", (2, 3), (3, 4)),
        case("_np_dot", (3,), (3,)),
        case("_np_dot", X, (2,)),
        case("_npi_matmul", (2, 3), (3, 4)),
        case("_npi_matmul", (2, 2, 3), (3, 4)),
        case("_npi_tensordot", X, (3, 4), a_axes_summed=(1,), b_axes_summed=(0,)),
        case("_npi_tensordot_int_axes", X, (2, 4), axes=1),
        nary("_npi_einsum", (2, 3), (3, 4), subscripts="ij,jk->ik", optimize=0),
        nary("_npi_einsum", (2, 3), (3, 4), (4,), subscripts="ij,jk,k->i", optimize=1),
        case("_npi_cholesky", Matrices((3, 3)), symmetric=True),
        case("_npi_solve", square, (3, 2)),
        case("_npi_svd", (2, 3), used=[1]),
        case("_npi_tensorinv", Matrices((6, 6), "regular"), ind=1),
        case("_npi_tensorsolve", Matrices((6, 6), "regular"), (6,)),
    ]


def _layer_cases() -> List[Case]:
    running = [const(np.zeros(3)), const(np.ones(3))]
    found = [
        case("FullyConnected", (2, 3), (4, 3), (4,), num_hidden=4),
        case("FullyConnected", X, (4, 6), num_hidden=4, no_bias=True),
        case("FullyConnected", X, (4, 2), (4,), num_hidden=4, flatten=False),
        case("Convolution", IMAGE, (4, 3, 3, 2), (4,), kernel=(3, 2), num_filter=4),
        case("Convolution", IMAGE, (4, 3, 3, 2), kernel=(3, 2), num_filter=4, no_bias=True,
             pad=(1, 1), stride=(2, 1), dilate=(1, 2)),
        case("Convolution", (2, 4, 4, 4), (4, 2, 3, 3), (4,), kernel=(3, 3), num_filter=4,
             num_group=2),
        case("Convolution", (2, 3, 6), (4, 3, 3), (4,), kernel=(3,), num_filter=4),
        case("Convolution", (1, 2, 3, 3, 3), (2, 2, 2, 2, 2), (2,), kernel=(2, 2, 2), num_filter=2),
        case("Convolution_v1", IMAGE, (4, 3, 3, 2), (4,), kernel=(3, 2), num_filter=4, pad=(1, 0)),
        case("Deconvolution", IMAGE, (3, 2, 3, 2), kernel=(3, 2), num_filter=2),
        case("Deconvolution", IMAGE, (3, 2, 3, 2), (2,), kernel=(3, 2), num_filter=2,
             no_bias=False, stride=(2, 2), pad=(1, 0), adj=(1, 1)),
        case("Deconvolution", (2, 3, 5), (3, 2, 3), kernel=(3,), num_filter=2),
        case("LRN", IMAGE, nsize=3, alpha=0.5, beta=0.75, single=True),
        case("InstanceNorm", IMAGE, (3,), (3,), eps=1e-3, single=True),
        case("LayerNorm", (2, 5), (5,), (5,)),
        case("LayerNorm", IMAGE, (3,), (3,), axis=1),
        case("GroupNorm", (2, 4, 3), (2,), (2,), num_groups=2),
        case("Dropout", X, p=0.5, random=True),
        case("Dropout", X, p=0.5, mode="always", axes=(1,), random=True),
        case("Dropout", X, p=0.0),
        case("SoftmaxActivation", (3, 4), single=True),
        case("SoftmaxActivation", IMAGE, mode="channel", single=True),
        case("softmax", X),
        case("softmax", X, axis=1, temperature=2.0),
        case("softmax", (2, 4), const([3, 2], "int32"), use_length=True),
        case("log_softmax", X, axis=1),
        case("log_softmax", X, axis=-1, temperature=2.0),
        case("softmin", X, axis=1),
        case("softmin", X, axis=1, temperature=2.0),
        case("ROIPooling", (1, 2, 6, 6), const([[0.0, 0, 0, 4, 4], [0, 1, 1, 5, 3]]),
             pooled_size=(2, 2), spatial_scale=1.0),
        case("BilinearSampler", (1, 2, 4, 4), within_1(1, 2, 3, 3)),
        case("GridGenerator", (2, 6), transform_type="affine", target_shape=(3, 3), single=True),
        case("GridGenerator", (1, 2, 3, 3), transform_type="warp", single=True),
        case("SpatialTransformer", (1, 2, 4, 4), Numbers((1, 6), 0.1, 0.4), target_shape=(3, 3),
             transform_type="affine", sampler_type="bilinear"),
        case("Correlation", (1, 2, 5, 5), (1, 2, 5, 5), kernel_size=1, max_displacement=1,
             pad_size=1),
        case("Correlation", (1, 2, 5, 5), (1, 2, 5, 5), kernel_size=1, max_displacement=1,
             pad_size=1, is_multiply=False),
        case("BatchNorm_v1", IMAGE, (3,), (3,), fix_gamma=False, states=running, single=True),
        case("_contrib_BatchNormWithReLU", IMAGE, (3,), (3,), fix_gamma=False, states=running,
             used=[0], single=True),
        case("_contrib_SyncBatchNorm", IMAGE, (3,), (3,), fix_gamma=False, states=running, used=[0],
             key="one", ndev=1, single=True),
    ]  # fmt: skip
    for given in (
        {"fix_gamma": False},
        {"fix_gamma": True},
        {"fix_gamma": False, "use_global_stats": True},
        {"fix_gamma": False, "axis": 3},
    ):
        channels = 4 if "axis" in given else 3
        states = [const(np.linspace(-0.5, 0.5, channels)), const(np.linspace(1, 2, channels))]
        found.append(case("BatchNorm", IMAGE, (channels,), (channels,), states=states, used=[0], **given))
    found.append(case("BatchNorm", (5, 3), (3,), (3,), fix_gamma=False, states=running, used=[0]))
    for kind in names("relu sigmoid tanh softrelu softsign"):
        found += [case("Activation", X, act_type=kind), case("Activation", IMAGE, act_type=kind)]

    def selu(weights, x):
        slopes = np.where(x > 0, 1, 1.6732632423543772 * np.exp(x))
        return [1.0507009873554805 * weights[0] * slopes]

    found += [case("LeakyReLU", x, act_type="selu", own=selu, single=True) for x in (X, IMAGE)]
    for kind in names("leaky elu gelu"):
        found += [
            case("LeakyReLU", X, act_type=kind, slope=0.3, single=True),
            case("LeakyReLU", IMAGE, act_type=kind, slope=0.3, single=True),
        ]
    found += [
        case("LeakyReLU", (2, 3), (3,), act_type="prelu", single=True),
        case("LeakyReLU", (2, 3), (1,), act_type="prelu", single=True),
        case("LeakyReLU", X, (3,), act_type="prelu", single=True),
        case("LeakyReLU", IMAGE, (3,), act_type="prelu", single=True),
        case("LeakyReLU", IMAGE, (1,), act_type="prelu", single=True),
    ]
    for kind in ("max", "avg", "sum", "lp"):
        power = {"p_value": 2} if kind == "lp" else {}
        for given in (
            {"kernel": (2, 2), "stride": (2, 2)},
            {"kernel": (3, 2), "stride": (2, 1), "pad": (1, 1)},
            {"kernel": (2, 3), "stride": (2, 2), "pooling_convention": "full"},
            {"global_pool": True},
        ):
            if kind == "lp" and "pooling_convention" in given:
                continue
            found.append(case("Pooling", IMAGE, pool_type=kind, **power, **given))
        found.append(case("Pooling", (2, 3, 5), pool_type=kind, kernel=(2,), **power))
    found += [
        case("Pooling", IMAGE, pool_type="avg", kernel=(3, 3), pad=(1, 1), count_include_pad=False),
        case("Pooling", (2, 5, 4, 3), pool_type="max", kernel=(2, 2), layout="NHWC", single=True),
        case("Pooling", (1, 2, 3, 3, 3), pool_type="max", kernel=(2, 2, 2)),
        case("Pooling_v1", IMAGE, pool_type="max", kernel=(2, 2)),
        case("Pooling_v1", IMAGE, pool_type="avg", kernel=(2, 2), pad=(1, 1)),
        case("Pooling_v1", IMAGE, pool_type="sum", kernel=(2, 2)),
        case("_contrib_AdaptiveAvgPooling2D", IMAGE, output_size=(2, 3)),
        case("_contrib_AdaptiveAvgPooling2D", IMAGE),
        case("_contrib_BilinearResize2D", IMAGE, height=7, width=3),
        case("_contrib_BilinearResize2D", IMAGE, const(np.ones((2, 3, 3, 6))), mode="like"),
        case("_contrib_BilinearResize2D", IMAGE, height=7, width=3, align_corners=False),
        case("_contrib_PSROIPooling", (1, 4, 6, 6), const([[0.0, 0, 0, 4, 4]]), spatial_scale=1.0,
             output_dim=1, pooled_size=2, single=True),
        case("_contrib_ROIAlign", (1, 2, 6, 6), const([[0.0, 0.3, 0.4, 4.2, 4.1]]),
             pooled_size=(2, 2), spatial_scale=1.0, sample_ratio=2),
        case("_contrib_DeformableConvolution", (1, 2, 4, 4), Numbers((1, 18, 4, 4), 0.1, 0.4),
             (2, 2, 3, 3), (2,), kernel=(3, 3), pad=(1, 1), num_filter=2),
    ]  # fmt: skip
    return found


GATES = {"rnn_relu": 1, "rnn_tanh": 1, "gru": 3, "lstm": 4}


def _recurrent_cases() -> List[Case]:
    found = []
    steps, batch, inputs, hidden = 3, 2, 3, 2
    for mode, gates in GATES.items():
        # the more layers, the more numbers near 0, where relu has a kink
        for layers, both in ((1, False), (2, True))[: 1 if mode == "rnn_relu" else 2]:
            ways, count, wide = 1 + both, 0, inputs
            for _ in range(layers):
                count += ways * gates * hidden * (wide + hidden + 2)
                wide = ways * hidden
            state = (layers * ways, batch, hidden)
            states = [state, state] if mode == "lstm" else [state]
            for outputs in (False, True):
                found.append(
                    case("RNN", (steps, batch, inputs), Numbers((count,), -0.9, 0.8), *states,
                         mode=mode, state_size=hidden, num_layers=layers, bidirectional=both,
                         state_outputs=outputs, single=mode == "rnn_relu")
                )  # fmt: skip
    return found


def _loss_cases() -> List[Case]:
    labels = const([1.0, 0.0, 3.0])

    def softmax(x, axis=-1):
        powers = np.exp(x - x.max(axis=axis, keepdims=True))
        return powers / powers.sum(axis=axis, keepdims=True)

    def output(scale=1.0):
        return lambda w, x, label: [scale * (softmax(x) - np.eye(4)[label.astype(int)])]

    def masked_output(w, x, label):
        return [output()(w, x, label)[0] * (label != 0)[:, None]]

    def over_channels(w, x, label):
        right = np.moveaxis(np.eye(x.shape[1])[label.astype(int)], -1, 1)
        return [(softmax(x, 1) - right) / x.shape[2]]

    def svm(linear):
        def gradient(w, x, label):
            right = label.astype(int)[:, None] == np.arange(x.shape[1])
            sign = np.where(right, -1.0, 1.0)
            short = np.where(right, 1.0 - x, 1.0 + x)
            return [np.where(short > 0, sign * (1.0 if linear else 2.0 * short), 0.0)]

        return gradient

    sigmoid = lambda x: 1 / (1 + np.exp(-x))  # noqa: E731
    return [
        case("SoftmaxOutput", (3, 4), labels, own=output()),
        case("SoftmaxOutput", (3, 4), labels, grad_scale=0.5, own=output(0.5)),
        case("SoftmaxOutput", (3, 4), labels, normalization="batch", own=output(1 / 3)),
        case("SoftmaxOutput", (3, 4), labels, use_ignore=True, ignore_label=0.0, own=masked_output),
        case("SoftmaxOutput", (2, 3, 2), const([[0.0, 2.0], [1.0, 1.0]]), multi_output=True,
             own=over_channels),
        case("LinearRegressionOutput", (3, 4), const(np.ones((3, 4))),
             own=lambda w, x, y: [(x - y) / 4]),
        case("LogisticRegressionOutput", (3, 4), const(np.ones((3, 4))),
             own=lambda w, x, y: [(sigmoid(x) - y) / 4]),
        case("MAERegressionOutput", (3, 4), const(np.full((3, 4), 0.1)),
             own=lambda w, x, y: [np.sign(x - y) / 4]),
        case("MakeLoss", X, grad_scale=0.5, own=lambda w, x: [np.full_like(x, 0.5)]),
        case("MakeLoss", (2, 3), normalization="batch", own=lambda w, x: [np.full_like(x, 0.5)]),
        case("SVMOutput", (3, 4), labels, own=svm(False)),
        case("SVMOutput", (3, 4), labels, use_linear=True, own=svm(True)),
        case("softmax_cross_entropy", (3, 4), labels),
        case("CTCLoss", (5, 2, 4), const([[1.0, 2.0], [3.0, 0.0]]), single=True, used=[0]),
        case("CTCLoss", (5, 2, 4), const([[1.0, 2.0], [3.0, 0.0]]), const([4.0, 5.0]),
             use_data_lengths=True, single=True, used=[0]),
        case("IdentityAttachKLSparseReg", Numbers((3, 4), 0.1, 0.9), sparseness_target=0.2,
             single=True,
             penalty=0.0, states=[const(np.full(4, 0.5))], own=_pass_gradient),
    ]  # fmt: skip


def _density_cases() -> List[Case]:
    samples, one = above_0(2, 3), above_0(2)
    found = []
    for log in (False, True):
        found += [
            case("_random_pdf_exponential", samples, one, is_log=log),
            case("_random_pdf_gamma", samples, one, above_0(2), is_log=log),
            case("_random_pdf_normal", samples, one, above_0(2), is_log=log),
            case("_random_pdf_poisson", const([[1.0, 2.0, 3.0]] * 2), one, is_log=log),
            case("_random_pdf_uniform", Numbers((2, 3), 0.6, 0.9), Numbers((2,), 0.1, 0.4),
                 Numbers((2,), 1.1, 1.4), is_log=log),
            case("_random_pdf_negative_binomial", const([[1.0, 2.0, 3.0]] * 2), above_1(2),
                 Numbers((2,), 0.2, 0.8), is_log=log),
            case("_random_pdf_generalized_negative_binomial", const([[1.0, 2.0, 3.0]] * 2),
                 above_1(2), Numbers((2,), 0.2, 0.8), is_log=log),
            case("_random_pdf_dirichlet", Numbers((2, 3, 2), 0.2, 0.8), above_0(2, 2), is_log=log),
        ]  # fmt: skip
    return found


FAMILIES: Dict[str, Callable[[], List[Case]]] = {
    "unary": _unary_cases, "scalar": _scalar_cases, "binary": _binary_cases,
    "reductions": _reduction_cases,
    "shapes": _shape_cases, "indexing": _indexing_cases, "products": _product_cases,
    "layers": _layer_cases,
    "recurrent": _recurrent_cases, "losses": _loss_cases, "densities": _density_cases,
}  # fmt: skip


def all_cases() -> List[Case]:
    return [case for family in FAMILIES.values() for case in family()]


# Operators without a case: those that have no gradient (whole numbers, comparisons, positions,
# random numbers, constants); those whose bodies are graphs; those that GPUs alone have; those that
# raise an error where a gradient is asked for, or that graphs of fixed shapes cannot have.
NO_GRADIENT = frozenset(names("""
    _CachedOp _CachedOpThreadSafe _CrossDeviceCopy _CustomFunction _NDArray _Native _NoGradient
    Custom _cond _foreach _while_loop _contrib_DeformablePSROIPooling _contrib_count_sketch
    _contrib_fft _contrib_ifft _contrib_ModulatedDeformableConvolution _contrib_MultiBoxDetection
    _contrib_MultiBoxPrior _contrib_MultiBoxTarget _contrib_MultiProposal _contrib_Proposal
    _contrib_RROIAlign _contrib_SparseEmbedding _contrib_allclose _contrib_arange_like
    _contrib_bipartite_matching _contrib_boolean_mask _contrib_box_decode _contrib_box_encode
    _contrib_box_iou _contrib_box_nms _contrib_calibrate_entropy _contrib_edge_id _contrib_getnnz
    _contrib_index_array _copyto _cvcopyMakeBorder _cvimdecode _cvimread _cvimresize _imdecode
    _eye _full _grad_add _histogram _linspace _arange _ones _zeros _zeros_without_dtype _set_value
    _logical_and _logical_and_scalar _logical_or _logical_or_scalar _logical_xor
    _logical_xor_scalar _greater_equal _greater_equal_scalar _lesser _lesser_equal
    _lesser_equal_scalar _lesser_scalar _not_equal _not_equal_scalar broadcast_equal
    broadcast_greater_equal broadcast_lesser broadcast_lesser_equal broadcast_logical_and
    broadcast_logical_or broadcast_logical_xor broadcast_not_equal _np_all _np_any _onehot_encode
    _ravel_multi_index _unravel_index _scatter_set_nd _shuffle _slice_assign _slice_assign_scalar
    _sparse_retain _square_sum all_finite argmax argmax_channel argmin argsort batch_take
    fill_element_0index khatri_rao multi_all_finite multi_lars multi_sum_sq one_hot reset_arrays
    shape_array size_array _npx_constraint_check _npx_nonzero
    _npi_argmax _npi_argmin _npi_bincount _npi_boolean_mask_assign_scalar
    _npi_boolean_mask_assign_tensor _npi_column_stack _npi_copysign_scalar _npi_delete
    _npi_diag_indices_from _npi_dstack _npi_eig _npi_eigvals _npi_full_like _npi_hstack
    _npi_identity _npi_indices _npi_insert_scalar _npi_insert_slice _npi_insert_tensor
    _npi_logspace _npi_rcopysign_scalar _npi_share_memory _npi_unique _npi_where_scalar2
    _npi_arange _npi_blackman _npi_eye _npi_hamming _npi_hanning _npi_ones _npi_zeros
    _npi_bernoulli _npi_choice _npi_exponential _npi_gamma _npi_gumbel _npi_logistic
    _npi_multinomial _npi_normal _npi_normal_n _npi_pareto _npi_powerd _npi_rayleigh _npi_uniform
    _npi_uniform_n _npi_weibull
"""))  # fmt: skip
# Beginnings and parts of names that are kinds of such operators.
KINDS_WITHOUT_GRADIENT = (
    "_random_", "_sample_", "_npi_bitwise_", "_npi_equal", "_npi_greater", "_npi_is",
    "_npi_lcm", "_npi_less", "_npi_logical_", "_npi_not_equal", "_image_", "_sg_mkldnn_",
    "_contrib_dgl_", "backward", "quantize", "update",
)  # fmt: skip
