"""The kernels of ``maskprior.kernels.triton``: forward, gradients of query, of key and value, of the bias.

No atomics: each kernel owns the tile that it writes and loops over everything that is summed into it, the
bias gradient over the batch too. Forward and backward follow FlashAttention-2 (Dao 2023), the loop over the
broadcast axis OpenFold-3's bias gradient.
"""

# Device code: its arguments are pointers and strides, which only Triton types.
# mypy: ignore-errors
# fmt: off

import triton
import triton.language as tl


@triton.jit
def _rows(pointer, row, indices, count, features, width):
    """Rows ``[indices, features]``, zeros outside."""
    inside = (indices[:, None] < count) & (features[None, :] < width)
    return tl.load(pointer + indices[:, None] * row + features[None, :], mask=inside, other=0.0)


@triton.jit
def _put(pointer, row, indices, count, features, width, x):
    """Store rows in the type of the pointer."""
    inside = (indices[:, None] < count) & (features[None, :] < width)
    place = pointer + indices[:, None] * row + features[None, :]
    tl.store(place, x.to(pointer.dtype.element_ty), mask=inside)


@triton.jit
def _scores(
    q, k, bias, allowed, rows, columns, queries, keys, scale, bias_row, allowed_row, allowed_column,
    IS_CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):
    """Scores of a tile in base 2, −∞ where not allowed."""
    log2e: tl.constexpr = 1.4426950408889634
    s = tl.dot(q, tl.trans(k), input_precision=PRECISION) * (scale * log2e)
    inside = (rows[:, None] < queries) & (columns[None, :] < keys)
    if bias is not None:
        b = tl.load(bias + rows[:, None] * bias_row + columns[None, :], mask=inside, other=0.0)
        s += b * tl.where(b < -2e38, 1.0, log2e)  # the lowest numbers stay finite, as −∞ is closed
    if allowed is not None:
        place = rows[:, None] * allowed_row + columns[None, :] * allowed_column
        inside = inside & (tl.load(allowed + place, mask=inside, other=0) != 0)
    if IS_CAUSAL:
        inside = inside & (columns[None, :] <= rows[:, None] + (keys - queries))
    return tl.where(inside, s, float("-inf"))


@triton.jit
def _norm(Norm, place, inside):
    """What the forward kept of the queries: their highest scores and the logarithms of their totals."""
    return tl.load(Norm + 2 * place, inside, 0.0), tl.load(Norm + 2 * place + 1, inside, 0.0)


@triton.jit
def _slope(
    q, k, v, g, peak, log_total, delta, bias, allowed, rows, columns, queries, keys, scale,
    bias_row, allowed_row, allowed_column, IS_CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
):
    """P and dS = P ∘ (G Vᵀ − δ) of a tile."""
    s = _scores(
        q, k, bias, allowed, rows, columns, queries, keys, scale, bias_row, allowed_row, allowed_column,
        IS_CAUSAL, PRECISION,
    )
    p = tl.exp2(s - peak[:, None] - log_total[:, None])
    return p, p * (tl.dot(g, tl.trans(v), input_precision=PRECISION) - delta[:, None])


@triton.jit
def _end_of_keys(queries, keys, IS_CAUSAL: tl.constexpr, BLOCK_Q: tl.constexpr):
    """One past the last key that the program's queries may attend to."""
    if IS_CAUSAL:
        return tl.minimum(keys, (tl.program_id(0) + 1) * BLOCK_Q + keys - queries)
    return keys


@triton.jit
def forward_kernel(
    Q, K, V, Bias, Allowed, Out, Norm,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row, o_item, o_head, o_row,
    bias_head, bias_row, allowed_item, allowed_head, allowed_row, allowed_column,
    heads, group, queries, keys, width, value_width, scale,
    IS_CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):
    """Output of a block of queries; programs: (blocks of queries, items · heads).

    Norm keeps, for the backward, each query's highest score and the logarithm of its total, base 2: apart, as
    their sum would lose the logarithm where all keys are strongly suppressed.
    """
    item, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    features, value_features = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    q = _rows(Q + item * q_item + head * q_head, q_row, rows, queries, features, width)
    K += item * k_item + head // group * k_head
    V += item * v_item + head // group * v_head
    if Bias is not None:
        Bias += head * bias_head
    if Allowed is not None:
        Allowed += item * allowed_item + head * allowed_head
    peak = tl.full([BLOCK_Q], float("-inf"), tl.float32)
    total = tl.zeros([BLOCK_Q], tl.float32)
    out = tl.zeros([BLOCK_Q, VALUE_WIDTH], tl.float32)
    for first in range(0, _end_of_keys(queries, keys, IS_CAUSAL, BLOCK_Q), BLOCK_K):
        columns = first + tl.arange(0, BLOCK_K)
        k = _rows(K, k_row, columns, keys, features, width)
        s = _scores(
            q, k, Bias, Allowed, rows, columns, queries, keys, scale, bias_row, allowed_row, allowed_column,
            IS_CAUSAL, PRECISION,
        )
        higher = tl.maximum(peak, tl.max(s, 1))
        base = tl.where(higher == float("-inf"), 0.0, higher)
        p = tl.exp2(s - base[:, None])
        shrink = tl.exp2(peak - base)
        v = _rows(V, v_row, columns, keys, value_features, value_width)
        out = out * shrink[:, None] + tl.dot(p.to(v.dtype), v, input_precision=PRECISION)
        total = total * shrink + tl.sum(p, 1)
        peak = higher
    is_empty = total == 0.0
    out = tl.where(is_empty[:, None], 0.0, out / tl.where(is_empty, 1.0, total)[:, None])
    _put(Out + item * o_item + head * o_head, o_row, rows, queries, value_features, value_width, out)
    norm = Norm + 2 * (tl.program_id(1).to(tl.int64) * queries + rows)
    tl.store(norm, tl.where(is_empty, 0.0, peak), mask=rows < queries)
    tl.store(norm + 1, tl.log2(tl.where(is_empty, 1.0, total)), mask=rows < queries)


@triton.jit
def delta_kernel(
    Q, K, V, Bias, Allowed, G, Norm, Delta,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row, g_item, g_head, g_row,
    bias_head, bias_row, allowed_item, allowed_head, allowed_row, allowed_column,
    heads, group, queries, keys, width, value_width, scale,
    IS_CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):
    """δ = rowsum(P ∘ G Vᵀ) of a block of queries; programs as in the forward.

    For half precision: δ from the rounded output would carry its error into every bias gradient.
    """
    item, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    features, value_features = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    q = _rows(Q + item * q_item + head * q_head, q_row, rows, queries, features, width)
    g = _rows(G + item * g_item + head * g_head, g_row, rows, queries, value_features, value_width)
    place = tl.program_id(1).to(tl.int64) * queries + rows
    peak, log_total = _norm(Norm, place, rows < queries)
    K += item * k_item + head // group * k_head
    V += item * v_item + head // group * v_head
    if Bias is not None:
        Bias += head * bias_head
    if Allowed is not None:
        Allowed += item * allowed_item + head * allowed_head
    nothing = tl.zeros([BLOCK_Q], tl.float32)
    delta = nothing
    for first in range(0, _end_of_keys(queries, keys, IS_CAUSAL, BLOCK_Q), BLOCK_K):
        columns = first + tl.arange(0, BLOCK_K)
        k = _rows(K, k_row, columns, keys, features, width)
        v = _rows(V, v_row, columns, keys, value_features, value_width)
        _, slope = _slope(
            q, k, v, g, peak, log_total, nothing, Bias, Allowed, rows, columns, queries, keys, scale,
            bias_row, allowed_row, allowed_column, IS_CAUSAL, PRECISION,
        )
        delta += tl.sum(slope, 1)
    tl.store(Delta + place, delta, mask=rows < queries)


@triton.jit
def grad_query_kernel(
    Q, K, V, Bias, Allowed, G, Norm, Delta, DQ,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row, g_item, g_head, g_row,
    d_item, d_head, d_row, bias_head, bias_row, allowed_item, allowed_head, allowed_row, allowed_column,
    heads, group, queries, keys, width, value_width, scale,
    IS_CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):
    """Gradient of a block of queries; programs as in the forward."""
    item, head = (tl.program_id(1) // heads).to(tl.int64), (tl.program_id(1) % heads).to(tl.int64)
    rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    features, value_features = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    q = _rows(Q + item * q_item + head * q_head, q_row, rows, queries, features, width)
    g = _rows(G + item * g_item + head * g_head, g_row, rows, queries, value_features, value_width)
    place = tl.program_id(1).to(tl.int64) * queries + rows
    peak, log_total = _norm(Norm, place, rows < queries)
    delta = tl.load(Delta + place, rows < queries, 0.0)
    K += item * k_item + head // group * k_head
    V += item * v_item + head // group * v_head
    if Bias is not None:
        Bias += head * bias_head
    if Allowed is not None:
        Allowed += item * allowed_item + head * allowed_head
    dq = tl.zeros([BLOCK_Q, WIDTH], tl.float32)
    for first in range(0, _end_of_keys(queries, keys, IS_CAUSAL, BLOCK_Q), BLOCK_K):
        columns = first + tl.arange(0, BLOCK_K)
        k = _rows(K, k_row, columns, keys, features, width)
        v = _rows(V, v_row, columns, keys, value_features, value_width)
        _, slope = _slope(
            q, k, v, g, peak, log_total, delta, Bias, Allowed, rows, columns, queries, keys, scale,
            bias_row, allowed_row, allowed_column, IS_CAUSAL, PRECISION,
        )
        dq += tl.dot(slope.to(k.dtype), k, input_precision=PRECISION)
    _put(DQ + item * d_item + head * d_head, d_row, rows, queries, features, width, dq * scale)


@triton.jit
def grad_key_value_kernel(
    Q, K, V, Bias, Allowed, G, Norm, Delta, DK, DV,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row, g_item, g_head, g_row,
    dk_item, dk_head, dk_row, dv_item, dv_head, dv_row,
    bias_head, bias_row, allowed_item, allowed_head, allowed_row, allowed_column,
    heads, group, queries, keys, width, value_width, scale,
    IS_CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):
    """Gradients of a block of keys and values; programs: (blocks of keys, items · key heads)."""
    kv_heads = heads // group
    item, kv_head = (tl.program_id(1) // kv_heads).to(tl.int64), (tl.program_id(1) % kv_heads).to(tl.int64)
    columns = tl.program_id(0) * BLOCK_K + tl.arange(0, BLOCK_K)
    features, value_features = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    k = _rows(K + item * k_item + kv_head * k_head, k_row, columns, keys, features, width)
    v = _rows(V + item * v_item + kv_head * v_head, v_row, columns, keys, value_features, value_width)
    dk = tl.zeros([BLOCK_K, WIDTH], tl.float32)
    dv = tl.zeros([BLOCK_K, VALUE_WIDTH], tl.float32)
    start = 0
    if IS_CAUSAL:
        start = tl.maximum(0, tl.program_id(0) * BLOCK_K - (keys - queries)) // BLOCK_Q * BLOCK_Q
    for member in range(group):
        head = kv_head * group + member
        bias, allowed = Bias, Allowed
        if Bias is not None:
            bias = Bias + head * bias_head
        if Allowed is not None:
            allowed = Allowed + item * allowed_item + head * allowed_head
        for first in range(start, queries, BLOCK_Q):
            rows = first + tl.arange(0, BLOCK_Q)
            q = _rows(Q + item * q_item + head * q_head, q_row, rows, queries, features, width)
            g = _rows(G + item * g_item + head * g_head, g_row, rows, queries, value_features, value_width)
            place = (item * heads + head) * queries + rows
            peak, log_total = _norm(Norm, place, rows < queries)
            delta = tl.load(Delta + place, rows < queries, 0.0)
            p, slope = _slope(
                q, k, v, g, peak, log_total, delta, bias, allowed, rows, columns, queries, keys, scale,
                bias_row, allowed_row, allowed_column, IS_CAUSAL, PRECISION,
            )
            dv += tl.dot(tl.trans(p).to(g.dtype), g, input_precision=PRECISION)
            dk += tl.dot(tl.trans(slope).to(q.dtype), q, input_precision=PRECISION)
    _put(DK + item * dk_item + kv_head * dk_head, dk_row, columns, keys, features, width, dk * scale)
    _put(DV + item * dv_item + kv_head * dv_head, dv_row, columns, keys, value_features, value_width, dv)


@triton.jit
def grad_bias_kernel(
    Q, K, V, Bias, Allowed, G, Norm, Delta, Parts,
    q_item, q_head, q_row, k_item, k_head, k_row, v_item, v_head, v_row, g_item, g_head, g_row,
    bias_head, bias_row, allowed_item, allowed_head, allowed_row, allowed_column,
    heads, group, queries, keys, width, value_width, scale, batch, planes, splits,
    IS_CAUSAL: tl.constexpr, PRECISION: tl.constexpr,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, WIDTH: tl.constexpr, VALUE_WIDTH: tl.constexpr,
):
    """A tile of one head's bias gradient, summed over a split's items and over the heads that share the bias.

    Programs: (blocks of queries, blocks of keys, splits · bias heads), as in ``Parts``
    [splits, bias heads, queries, keys].
    """
    split, plane = tl.program_id(2) // planes, tl.program_id(2) % planes
    shared_by = heads // planes
    rows = tl.program_id(0) * BLOCK_Q + tl.arange(0, BLOCK_Q)
    columns = tl.program_id(1) * BLOCK_K + tl.arange(0, BLOCK_K)
    features, value_features = tl.arange(0, WIDTH), tl.arange(0, VALUE_WIDTH)
    total = tl.zeros([BLOCK_Q, BLOCK_K], tl.float32)
    for index in range(split, batch, splits):
        item = tl.cast(index, tl.int64)
        for member in range(shared_by):
            head = tl.cast(plane * shared_by + member, tl.int64)
            q = _rows(Q + item * q_item + head * q_head, q_row, rows, queries, features, width)
            g = _rows(G + item * g_item + head * g_head, g_row, rows, queries, value_features, value_width)
            k = _rows(K + item * k_item + head // group * k_head, k_row, columns, keys, features, width)
            value = V + item * v_item + head // group * v_head
            v = _rows(value, v_row, columns, keys, value_features, value_width)
            place = (item * heads + head) * queries + rows
            peak, log_total = _norm(Norm, place, rows < queries)
            delta = tl.load(Delta + place, rows < queries, 0.0)
            allowed = Allowed
            if Allowed is not None:
                allowed = Allowed + item * allowed_item + head * allowed_head
            _, slope = _slope(
                q, k, v, g, peak, log_total, delta, Bias + head * bias_head, allowed, rows, columns,
                queries, keys, scale, bias_row, allowed_row, allowed_column, IS_CAUSAL, PRECISION,
            )
            total += slope
    _put(Parts + tl.program_id(2).to(tl.int64) * queries * keys, keys, rows, queries, columns, keys, total)
