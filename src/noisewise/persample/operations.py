"""The table of operations that act row by row, and on which condition: what a proof may use. What is not here is unknown.

Each rule takes a `Call` whose inputs hold units and says where the units run in each output, or raises `NotProven` with the
reason. docs/operations.md is written from this table; `tests/persample/test_operations.py` asks every row of it for the
definition: moving one unit moves that unit's row of the output and no other.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from noisewise._moved import old_names
from noisewise.persample import choosing, rules
from noisewise.persample.conditions import Rule


class Row(NamedTuple):
    """A row of the table: operations that share a rule, and its condition in words."""

    names: tuple[str, ...]
    rule: Rule
    condition: str


def _row(names: str, rule: Rule, condition: str) -> Row:
    return Row(tuple(names.split()), rule, condition)


POINTWISE = (
    "abs acos acosh add addcdiv addcmul angle asin asinh atan atan2 atanh bernoulli binary_cross_entropy "
    "binary_cross_entropy_with_logits bitwise_and bitwise_left_shift bitwise_not bitwise_or bitwise_right_shift "
    "bitwise_xor ceil celu clamp clamp_max clamp_min clone complex copysign cos cosh deg2rad digamma div elu eq erf "
    "erfc erfinv exp exp2 expm1 floor floor_divide fmax fmin fmod frac ge gelu gt hardshrink hardsigmoid hardswish "
    "hardtanh heaviside huber_loss hypot i0 igamma igammac isinf isnan isneginf isposinf ldexp le leaky_relu lerp "
    "lgamma log log10 log1p log2 log_sigmoid_forward logaddexp logaddexp2 logical_and logical_not logical_or "
    "logical_xor logit lt masked_fill maximum minimum mish mse_loss mul mvlgamma nan_to_num native_dropout ne neg "
    "nextafter normal poisson polar polygamma pow rad2deg reciprocal relu remainder round rrelu_with_noise rsqrt rsub "
    "sgn sigmoid sign signbit silu sin sinc sinh smooth_l1_loss soft_margin_loss softplus softshrink special_entr "
    "special_erfcx special_i0e special_i1 special_i1e special_log_ndtr special_ndtri special_xlog1py special_zeta "
    "sqrt sub tan tanh threshold trunc where xlogy __lshift__ __rshift__ _conj_physical _neg_view_copy _prelu_kernel "
    "_to_copy"
)

REDUCTIONS = (
    "sum mean prod amax amin argmax argmin any all std var var_mean std_mean logsumexp median nanmedian nansum norm "
    "linalg_vector_norm mode kthvalue count_nonzero aminmax"
)

TABLE: tuple[Row, ...] = (
    _row(
        POINTWISE,
        rules.pointwise,
        "entry by entry; what is laid over the units without being one of them must be the same for each; "
        "losses with reduction='none'",
    ),
    _row("copy", rules.copy, "entry by entry"),
    _row(REDUCTIONS, rules.reduction, "over other dimensions than the unit's"),
    _row("max min", rules.reduction_or_pointwise, "over other dimensions than the unit's, or entry by entry"),
    _row(
        "_softmax _log_softmax _safe_softmax cumsum cumprod cummax cummin logcumsumexp flip roll _fft_r2c _fft_c2c "
        "_fft_c2r sort topk glu",
        rules.along,
        "along other dimensions than the unit's",
    ),
    _row(
        "tril triu linalg_inv_ex linalg_cholesky_ex _linalg_det linalg_qr _linalg_eigh linalg_matrix_exp",
        rules.matrices,
        "matrix by matrix, the unit not within one",
    ),
    _row(
        "mm addmm bmm baddbmm",
        rules.product,
        "one factor holds units, in a row that is not added up, or both hold the same unit's matrices",
    ),
    _row("mv addmv", rules.matrix_vector, "units in rows, vector the same for all"),
    _row("convolution _convolution", rules.convolution, "units in front, weights the same for all"),
    _row(
        "upsample_nearest1d upsample_linear1d _upsample_nearest_exact1d reflection_pad1d replication_pad1d",
        rules.spatial(1),
        "the unit not among the last dimension",
    ),
    _row(
        "max_pool2d_with_indices avg_pool2d _adaptive_avg_pool2d adaptive_max_pool2d upsample_nearest2d "
        "upsample_bilinear2d upsample_bicubic2d _upsample_nearest_exact2d _upsample_bilinear2d_aa "
        "_upsample_bicubic2d_aa reflection_pad2d replication_pad2d max_unpool2d",
        rules.spatial(2),
        "the unit not among the last two dimensions",
    ),
    _row(
        "max_pool3d_with_indices avg_pool3d _adaptive_avg_pool3d adaptive_max_pool3d upsample_nearest3d "
        "upsample_trilinear3d _upsample_nearest_exact3d reflection_pad3d replication_pad3d pixel_shuffle "
        "pixel_unshuffle",
        rules.spatial(3),
        "the unit not among the last three dimensions",
    ),
    _row("im2col col2im channel_shuffle", rules.patches, "units in front"),
    _row("constant_pad_nd", rules.padding, "border around other dimensions than the unit's"),
    _row("native_layer_norm _fused_rms_norm", rules.trailing_norm, "over the last dimensions, the unit before them"),
    _row("native_group_norm", rules.group_norm, "units in front"),
    _row(
        "native_batch_norm _native_batch_norm_legit _native_batch_norm_legit_no_training cudnn_batch_norm",
        rules.batch_norm,
        "with fixed statistics, or with units as channels (InstanceNorm)",
    ),
    _row("embedding", rules.lookup, "indices by unit, table the same for all"),
    _row("_embedding_bag _embedding_bag_forward_only", rules.bags, "bags of equal size, one for each unit"),
    _row(
        "_scaled_dot_product_flash_attention_for_cpu _scaled_dot_product_flash_attention "
        "_scaled_dot_product_efficient_attention _scaled_dot_product_cudnn_attention "
        "_scaled_dot_product_fused_attention_overrideable",
        rules.attention,
        "units in front of queries, keys and values",
    ),
    _row("nll_loss_forward nll_loss2d_forward", rules.classes, "units in front, reduction='none'"),
    _row("multi_margin_loss multilabel_margin_loss_forward", rules.margins, "units in front, reduction='none'"),
    _row("cat stack", choosing.joined, "along another dimension than the unit's, or unit for unit behind each other"),
    _row("repeat", choosing.repeated, "copies"),
    _row(
        "index _unsafe_index",
        choosing.indexed,
        "each unit's own row by its number, other dimensions by indices; or a table that is the same for all",
    ),
    _row("index_put _index_put_impl _unsafe_index_put", choosing.put, "into each unit's own row"),
    _row("gather scatter scatter_add scatter_reduce", choosing.gathered, "along another dimension than the unit's"),
    _row(
        "index_select",
        choosing.selected,
        "along another dimension than the unit's, or from a table that is the same for all",
    ),
    _row("index_add index_copy", choosing.added_at, "along another dimension than the unit's"),
    _row(
        "bucketize searchsorted isin",
        choosing.against_shared,
        "entry by entry against a sequence that is the same for all",
    ),
    _row("grid_sampler_2d grid_sampler_3d", rules.sampled, "units in front"),
    _row("affine_grid_generator", rules.grids, "units in front"),
    _row("multinomial", rules.drawn, "one row for each unit"),
    _row(
        "_cdist_forward _euclidean_dist",
        rules.distances,
        "points of one unit with each other, or units with points that are the same for all",
    ),
    _row("mkldnn_rnn_layer", rules.recurrent_layer, "time in front, then units"),
    _row("_cudnn_rnn", rules.cudnn_layers, "time in front, then units"),
    _row("_thnn_fused_lstm_cell _thnn_fused_gru_cell", rules.gates, "units in front"),
)

RULES: dict[str, Rule] = {name: row.rule for row in TABLE for name in row.names}

if not TYPE_CHECKING:
    __getattr__ = old_names(__name__)
