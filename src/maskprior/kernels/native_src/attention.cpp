// Forward and backward of one (item, head) of attention with a bias, for the instruction set it is built for.
//
//   S = scale Q K' + bias,  P = softmax(S),  O = (P * D) V                       (D: dropout factors)
//   dP = (G V') * D,  delta = rowsum(P * dP) = rowsum(G * O),  dS = P * (dP - delta)
//   dV = (P * D)' G,  dQ = scale dS K,  dK = scale dS' Q,  dbias = sum over items of dS
//
// Tiles of S never leave the cache. The softmax is the online one (Milakov and Gimelshein 2018; Dao et al.
// 2022), the backward a single pass that recomputes P. Short problems read and write the tensors in place;
// long or bfloat16 ones, and widths that are no multiple of a vector, go through float32 scratch memory.

#include "interface.h"
#include "product.h"
#include "scores.h"

namespace {

constexpr ptrdiff_t QUERIES = 80;        // rows of a tile
constexpr ptrdiff_t FORWARD_KEYS = 256;  // columns of a tile, multiples of STRIP
constexpr ptrdiff_t BACKWARD_KEYS = 64;
constexpr ptrdiff_t SHORT = 256;  // up to here, all keys make one tile
constexpr ptrdiff_t WHOLE = 1 << 17;  // floats of a tile that holds all of many keys
constexpr ptrdiff_t AHEAD = 320;      // rows up to which the next problem is prefetched: few long ones matter less

// A matrix of floats in a tensor or in scratch memory.
struct Matrix {
    float *data;
    ptrdiff_t row;
    float *at(ptrdiff_t i) const { return data + i * row; }
};

template <typename T> struct Rows {
    T *data;
    ptrdiff_t row;
    Rows(const MaskpriorRows &rows, int64_t item, int64_t head, int64_t first = 0)
        : data((T *)rows.data + item * rows.batch + head * rows.head + first * rows.row), row(rows.row) {}
    Rows(T *data, ptrdiff_t row) : data(data), row(row) {}
    Rows block(ptrdiff_t i, ptrdiff_t column) const { return {data + i * row + column, row}; }
    Matrix matrix() const { return {(float *)data, row}; }  // only where T is float
};

// Bump allocator over one thread's scratch memory; blocks start at multiples of 64 bytes.
struct Scratch {
    float *next;
    size_t used = 0;
    float *take(ptrdiff_t floats) {
        float *block = next;
        ptrdiff_t rounded = (floats + 15) / 16 * 16;
        if (next) next += rounded;
        used += rounded;
        return block;
    }
    Matrix take(ptrdiff_t rows, ptrdiff_t width) { return {take(rows * padded(width)), padded(width)}; }
};

template <typename T> bool is_vectors(ptrdiff_t width) { return sizeof(T) == sizeof(float) && width % W == 0; }

template <typename T> Matrix pack_rows(Rows<T> from, ptrdiff_t rows, ptrdiff_t width, Matrix to) {
    for (ptrdiff_t i = 0; i < rows; ++i, from.data += from.row)
        for (ptrdiff_t c = 0; c < width; c += W) store(to.at(i) + c, load_first(from.data + c, width - c));
    return to;
}

// Rows times their factor (null: 1).
template <typename T>
void unpack_rows(Matrix from, ptrdiff_t rows, ptrdiff_t width, const float *factor, Rows<T> to) {
    for (ptrdiff_t i = 0; i < rows; ++i, to.data += to.row)
        for (ptrdiff_t c = 0; c < width; c += W) {
            V x = load(from.at(i) + c);
            store_first(to.data + c, factor ? x * factor[i] : x, width - c);
        }
}

// Transpose a block of W rows and W features, or, if not whole, of this many rows and features.
template <bool Whole, typename T>
void pack_block(Rows<T> from, ptrdiff_t rows, ptrdiff_t features, float *to, ptrdiff_t step) {
    V block[W];
    UNROLL for (int r = 0; r < W; ++r)
        block[r] = Whole || r < rows ? load_first(from.data + r * from.row, Whole ? W : features) : V{};
    transpose(block);
    UNROLL for (int f = 0; f < W; ++f)
        if (Whole || f < features) store(to + f * step, block[f]);
}

// Keys side by side, zeros after the last; a few beyond the last whole vector stay where they are.
template <typename T> Strips pack_strips(Rows<T> from, ptrdiff_t keys, ptrdiff_t width, float *to) {
    ptrdiff_t rest = is_vectors<T>(width) && keys % W <= FEW ? keys % W : 0, packed = padded(keys - rest);
    for (ptrdiff_t key = 0; key < packed; key += W) {
        ptrdiff_t strip = key / STRIP * STRIP, wide = least(STRIP, packed - strip);
        float *column = to + strip * width + (key - strip);
        for (ptrdiff_t c = 0; c < width; c += W) {
            bool whole = key + W <= keys && c + W <= width;
            auto pack = whole ? pack_block<true, T> : pack_block<false, T>;
            pack(from.block(key, c), keys - key, width - c, column + c * wide, wide);
        }
    }
    return {to, packed, (const float *)from.data + packed * from.row, rest, from.row};
}

// Has the next problem's rows brought into the cache.
template <typename T>
void plan_rows(Ahead &ahead, const MaskpriorRows &rows, int64_t item, int64_t head, ptrdiff_t count, ptrdiff_t width) {
    if (count > AHEAD) return;
    Rows<const T> from(rows, item, head);
    ahead.plan(from.data, from.row, count, width);
}

// A tile of the bias or of its gradient, brought into the cache during a product over this width. A whole row
// needs no help: the next one adjoins it.
Ahead plan_tile(const float *data, ptrdiff_t row, ptrdiff_t rows, ptrdiff_t first, ptrdiff_t last, ptrdiff_t width) {
    Ahead tile;
    if (!data || last - first >= row) return tile;
    tile.plan(data + first, row, rows, last - first);
    tile.divide(rows * (last - first) * width / W);
    return tile;
}

// The keys that any of the queries up to `row` may attend to end here.
ptrdiff_t end_of_keys(const MaskpriorCall &call, ptrdiff_t row) {
    ptrdiff_t end = call.is_causal ? least(call.keys, row + call.keys - call.queries + 1) : call.keys;
    return end > 0 ? end : 0;
}

// Even heights of the tiles, at most `highest`.
ptrdiff_t tile_height(ptrdiff_t queries, ptrdiff_t highest) {
    ptrdiff_t tiles = (queries + highest - 1) / highest;
    return (queries + tiles - 1) / tiles;
}

// ---------------------------------------------------------------------------------------------- forward

struct Forward {
    float *key_memory, *peak, *total, *base;
    Strips keys;  // in key_memory
    Matrix values, query, weights, sums;

    Forward(const MaskpriorCall &call, Scratch &scratch) {
        key_memory = scratch.take(padded(call.keys) * call.width);
        values = scratch.take(call.keys, call.value_width);
        query = scratch.take(QUERIES, call.width);
        weights = scratch.take(QUERIES, least(FORWARD_KEYS, call.keys));
        sums = scratch.take(QUERIES, call.value_width);
        peak = scratch.take(padded(QUERIES));
        total = scratch.take(padded(QUERIES));
        base = scratch.take(padded(QUERIES));
    }
};

// Turn the products of up to W queries with a block of keys into weights e^(s - peak), in place; keep the peak
// and the total of each query and scale what was summed before to the new peak. True if a score is +infinity.
bool soften(const Scores &scores, const Forward &f, ptrdiff_t r, ptrdiff_t rows, ptrdiff_t first, ptrdiff_t last) {
    V x[W];
    UNROLL for (int i = 0; i < W; ++i) x[i] = broadcast(NEGATIVE_INFINITY);
    for (ptrdiff_t i = 0; i < rows; ++i) {
        float *row = f.weights.at(r + i) - first;
        V top = broadcast(NEGATIVE_INFINITY);
        scores.row(r + i).each(row, first, last, [&](ptrdiff_t key, V s) {
            store(row + key, s);
            top = highest(top, s);
        });
        x[i] = top;
    }
    V before = load(f.peak + r), now = highest(before, maxima(x));
    V base = now == NEGATIVE_INFINITY ? V{} : now;
    store(f.peak + r, now);
    store(f.base + r, base);
    UNROLL for (int i = 0; i < W; ++i) x[i] = V{};
    for (ptrdiff_t i = 0; i < rows; ++i) {
        float *row = f.weights.at(r + i);
        V total{};
        for (ptrdiff_t key = 0; key < last - first; key += W) {
            V p = exponential(load(row + key) - f.base[r + i]);
            total += p;
            store(row + key, p);
        }
        x[i] = total;
    }
    V shrink = exponential(before - base);
    store(f.total + r, load(f.total + r) * shrink + sums(x));
    if (first > 0 && any(shrink != 1.0f))
        for (ptrdiff_t i = 0; i < rows; ++i)
            for (ptrdiff_t c = 0; c < f.sums.row; c += W) store(f.sums.at(r + i) + c, load(f.sums.at(r + i) + c) * shrink[i]);
    if (scores.drops())
        for (ptrdiff_t i = 0; i < rows; ++i) scores.row(r + i).drop(f.weights.at(r + i), first, last);
    return any(now == -NEGATIVE_INFINITY);
}

// 1 / total of each query (0 for a query with no key), and what the backward needs of it.
void finish(const Forward &f, ptrdiff_t rows, const Scores &scores) {
    for (ptrdiff_t r = 0; r < rows; r += W) {
        V total = load(f.total + r);
        I empty = total == 0.0f;
        V finite = empty ? broadcast(1.0f) : total;
        store_first(scores.peak + r, load(f.base + r), rows - r);
        store_first(scores.log_total + r, empty ? V{} : logarithm(finite), rows - r);
        store(f.total + r, empty ? V{} : 1.0f / total);
    }
}

template <typename T>
bool forward_tile(const MaskpriorCall &call, int64_t item, int64_t head, const Forward &f, Matrix values, ptrdiff_t row,
                  ptrdiff_t rows, Ahead &ahead) {
    ptrdiff_t width = padded(call.value_width), end = end_of_keys(call, row + rows - 1);
    bool is_short = call.keys <= SHORT, infinite = false;
    Rows<T> output(call.output, item, head, row);
    Rows<const T> asked(call.query, item, head, row);
    Matrix query = is_short && is_vectors<T>(W) ? asked.matrix() : pack_rows(asked, rows, call.width, f.query);
    Matrix sums = is_short && is_vectors<T>(call.value_width) ? output.matrix() : f.sums;
    Scores scores(call, item, head, row);
    for (ptrdiff_t r = 0; r < rows; r += W) {
        store(f.peak + r, broadcast(NEGATIVE_INFINITY));
        store(f.total + r, V{});
    }
    for (ptrdiff_t first = 0; first < end || first == 0; first += FORWARD_KEYS) {
        ptrdiff_t last = least(first + FORWARD_KEYS, padded(call.keys)), count = least(last, call.keys) - first;
        Ahead bias = plan_tile(scores.bias, scores.bias_row, rows, first, last, call.width);
        product_of_strips(rows, first, last, call.width, {query.data, query.row, 1}, f.keys, f.weights.data,
                          f.weights.row, bias.or_else(ahead));
        for (ptrdiff_t r = 0; r < rows; r += W)
            infinite |= soften(scores, f, r, least(W, rows - r), first, last);
        product(rows, width, count, {f.weights.data, f.weights.row, 1}, values.at(first), values.row, sums.data,
                sums.row, first > 0, ahead);
    }
    finish(f, rows, scores);
    unpack_rows(sums, rows, call.value_width, f.total, output);
    return infinite;
}

template <typename T>
bool forward(const MaskpriorCall &call, MaskpriorPair pair, MaskpriorPair next, float *memory) {
    int64_t item = pair.item, head = pair.head;
    Scratch scratch{memory};
    Forward f(call, scratch);
    int64_t group = call.heads / call.kv_heads, kv_head = head / group;
    Rows<const T> read(call.value, item, kv_head);
    bool in_place = call.keys <= SHORT && is_vectors<T>(call.value_width);
    Matrix values = in_place ? read.matrix() : pack_rows(read, call.keys, call.value_width, f.values);
    f.keys = pack_strips(Rows<const T>(call.key, item, kv_head), call.keys, call.width, f.key_memory);
    ptrdiff_t height = tile_height(call.queries, QUERIES);
    Ahead ahead;
    plan_rows<T>(ahead, call.key, next.item, next.head / group, call.keys, call.width);
    plan_rows<T>(ahead, call.value, next.item, next.head / group, call.keys, call.value_width);
    plan_rows<T>(ahead, call.query, next.item, next.head, call.queries, call.width);
    plan_rows<T>(ahead, call.output, next.item, next.head, call.queries, call.value_width);
    ptrdiff_t products = call.keys <= FORWARD_KEYS ? 2 : 1;  // those that bring no tile into the cache
    ahead.divide(call.queries * call.keys * products * (call.width + call.value_width) / (2 * W));
    bool infinite = false;
    for (ptrdiff_t row = 0; row < call.queries; row += height)
        infinite |= forward_tile<T>(call, item, head, f, values, row, least(height, call.queries - row), ahead);
    return infinite;
}

// --------------------------------------------------------------------------------------------- backward

struct Backward {
    float *key_memory, *value_memory, *delta;
    Strips keys, values;  // in those
    Matrix key_rows, grad_keys, grad_values, query, gradient, grad_query, weights, slope;
    bool has_all_keys;  // in each tile; in bfloat16 always, as delta from the rounded output would be inexact
    ptrdiff_t tile_keys, tile_queries;

    Backward(const MaskpriorCall &call, Scratch &scratch)
        : has_all_keys(call.keys <= SHORT || call.is_bfloat16),
          tile_keys(has_all_keys ? padded(call.keys) : BACKWARD_KEYS),
          tile_queries(least(QUERIES, tile_keys * W > WHOLE ? W : WHOLE / tile_keys)) {
        key_memory = scratch.take(padded(call.keys) * call.width);
        value_memory = scratch.take(padded(call.keys) * call.value_width);
        key_rows = scratch.take(call.keys, call.width);
        grad_keys = scratch.take(call.keys, call.width);
        grad_values = scratch.take(call.keys, call.value_width);
        query = scratch.take(tile_queries, call.width);
        grad_query = scratch.take(tile_queries, call.width);
        gradient = scratch.take(tile_queries, call.value_width);
        weights = scratch.take(tile_queries, tile_keys);
        slope = scratch.take(tile_queries, tile_keys);
        delta = scratch.take(padded(QUERIES));
    }
};

// Everything of one (item, query head, tile of queries) in the backward.
struct Slopes {
    const Scores &scores;
    const Backward &b;
    float *grad_bias;  // of the tile's first query, or null
    bool set;          // overwrite it
    ptrdiff_t all_keys;

    // The weights, in place of the products Q K'.
    void weigh(ptrdiff_t r, ptrdiff_t first, ptrdiff_t last) const {
        float *weights = b.weights.at(r) - first, peak = scores.peak[r], log_total = scores.log_total[r];
        scores.row(r).each(weights, first, last,
                           [&](ptrdiff_t key, V s) { store(weights + key, exponential(s - peak - log_total)); });
        if (scores.drops()) scores.row(r).drop(b.slope.at(r), first, last);
    }

    // The sum of P * dP of one query, where all keys are in the tile.
    V read(ptrdiff_t r) const {
        V sum{};
        for (ptrdiff_t key = 0; key < b.tile_keys; key += W) sum += load(b.weights.at(r) + key) * load(b.slope.at(r) + key);
        return sum;
    }

    // dS and the bias gradient, in place of dP.
    void differentiate(ptrdiff_t r, ptrdiff_t first, ptrdiff_t last) const {
        const float *weights = b.weights.at(r) - first;
        float *slopes = b.slope.at(r) - first, *total = grad_bias + r * all_keys;
        for (ptrdiff_t key = first; key < last; key += W) {
            V slope = load(weights + key) * (load(slopes + key) - b.delta[r]);
            store(slopes + key, slope * scores.scale);
            ptrdiff_t count = all_keys - key;
            if (!grad_bias) continue;
            store_first(total + key, set ? slope : slope + load_first(total + key, count), count);
        }
        if (scores.drops()) scores.row(r).drop(b.weights.at(r), first, last);
    }
};

template <typename T>
void sum_gradient_times_output(const MaskpriorCall &call, Rows<const T> output, Matrix gradient, ptrdiff_t rows,
                               float *delta) {
    for (ptrdiff_t r = 0; r < rows; r += W) {
        V x[W];
        UNROLL for (int i = 0; i < W; ++i) x[i] = V{};
        for (ptrdiff_t i = 0; i < least(W, rows - r); ++i, output.data += output.row) {
            V sum{};
            for (ptrdiff_t c = 0; c < call.value_width; c += W)
                sum += load(gradient.at(r + i) + c) * load_first(output.data + c, call.value_width - c);
            x[i] = sum;
        }
        store(delta + r, sums(x));
    }
}

// The tile of P and dS of the keys [first, last).
void slope_tile(const Slopes &slopes, ptrdiff_t rows, ptrdiff_t first, ptrdiff_t last) {
    const Backward &b = slopes.b;
    for (ptrdiff_t r = 0; r < rows; ++r) slopes.weigh(r, first, last);
    for (ptrdiff_t r = 0; b.has_all_keys && r < rows; r += W) {
        V x[W];
        UNROLL for (int i = 0; i < W; ++i) x[i] = V{};
        for (ptrdiff_t i = 0; i < least(W, rows - r); ++i) x[i] = slopes.read(r + i);
        store(b.delta + r, sums(x));
    }
    for (ptrdiff_t r = 0; r < rows; ++r) slopes.differentiate(r, first, last);
}

// The gradients of one key head: the tensors themselves, or scratch memory.
struct Targets {
    Matrix key, value;
    bool in_place;
    bool add;  // they hold something already
};

template <typename T>
void backward_tile(const MaskpriorCall &call, int64_t item, int64_t head, const Backward &b, Targets &targets,
                   Matrix key_rows, ptrdiff_t row, ptrdiff_t rows, float *grad_bias, bool set, Ahead &ahead) {
    ptrdiff_t width = padded(call.width), value_width = padded(call.value_width);
    ptrdiff_t end = b.has_all_keys ? call.keys : end_of_keys(call, row + rows - 1), first = 0;
    Rows<const T> asked(call.query, item, head, row), upstream(call.gradient, item, head, row);
    Rows<T> result(call.grad_query, item, head, row);
    Matrix grad_query = targets.in_place ? result.matrix() : b.grad_query;
    Matrix query = targets.in_place ? asked.matrix() : pack_rows(asked, rows, call.width, b.query);
    Matrix gradient = targets.in_place ? upstream.matrix() : pack_rows(upstream, rows, call.value_width, b.gradient);
    if (!b.has_all_keys)
        sum_gradient_times_output(call, Rows<const T>(call.output, item, head, row), gradient, rows, b.delta);
    Scores scores(call, item, head, row);
    float *bias_rows = grad_bias ? grad_bias + row * call.keys : nullptr;
    Slopes slopes{scores, b, bias_rows, set, call.keys};
    for (; first < end; first += b.tile_keys) {
        ptrdiff_t last = least(first + b.tile_keys, padded(call.keys)), count = least(last, call.keys) - first;
        Ahead bias = plan_tile(scores.bias, scores.bias_row, rows, first, last, call.width);
        product_of_strips(rows, first, last, call.width, {query.data, query.row, 1}, b.keys, b.weights.data,
                          b.weights.row, bias.or_else(ahead));
        Ahead sum = plan_tile(bias_rows, call.keys, rows, first, last, call.value_width);
        product_of_strips(rows, first, last, call.value_width, {gradient.data, gradient.row, 1}, b.values,
                          b.slope.data, b.slope.row, sum.or_else(ahead));
        slope_tile(slopes, rows, first, last);
        if (!call.needs_operands) continue;
        product(count, value_width, rows, {b.weights.data, 1, b.weights.row}, gradient.data, gradient.row,
                targets.value.at(first), targets.value.row, targets.add, ahead);
        product(count, width, rows, {b.slope.data, 1, b.slope.row}, query.data, query.row, targets.key.at(first),
                targets.key.row, targets.add, ahead);
        product(rows, width, count, {b.slope.data, b.slope.row, 1}, key_rows.at(first), key_rows.row,
                grad_query.data, grad_query.row, first > 0, ahead);
        targets.add |= b.has_all_keys;
    }
    for (ptrdiff_t r = 0; bias_rows && set && first < call.keys && r < rows; ++r)
        memset(bias_rows + r * call.keys + first, 0, (call.keys - first) * sizeof(float));
    if (!call.needs_operands || targets.in_place) return;
    if (end == 0) memset(b.grad_query.data, 0, rows * width * sizeof(float));
    unpack_rows(b.grad_query, rows, call.width, nullptr, result);
}

template <typename T>
void backward(const MaskpriorCall &call, MaskpriorPair pair, MaskpriorPair next, float *grad_bias, bool set,
              float *memory) {
    int64_t item = pair.item, kv_head = pair.head;
    Scratch scratch{memory};
    Backward b(call, scratch);
    int64_t group = call.heads / call.kv_heads;
    bool in_place = call.keys <= SHORT && is_vectors<T>(call.width) && is_vectors<T>(call.value_width);
    Rows<const T> keys(call.key, item, kv_head), values(call.value, item, kv_head);
    Rows<T> grad_key(call.grad_key, item, kv_head), grad_value(call.grad_value, item, kv_head);
    Targets targets = {b.grad_keys, b.grad_values, in_place, !b.has_all_keys};
    if (in_place) targets = {grad_key.matrix(), grad_value.matrix(), true, false};
    b.keys = pack_strips(keys, call.keys, call.width, b.key_memory);
    b.values = pack_strips(values, call.keys, call.value_width, b.value_memory);
    Matrix key_rows = in_place ? keys.matrix() : pack_rows(keys, call.keys, call.width, b.key_rows);
    if (call.needs_operands && targets.add) {
        memset(b.grad_keys.data, 0, call.keys * b.grad_keys.row * sizeof(float));
        memset(b.grad_values.data, 0, call.keys * b.grad_values.row * sizeof(float));
    }
    ptrdiff_t height = tile_height(call.queries, b.tile_queries);
    Ahead ahead;
    plan_rows<T>(ahead, call.key, next.item, next.head, call.keys, call.width);
    plan_rows<T>(ahead, call.value, next.item, next.head, call.keys, call.value_width);
    plan_rows<T>(ahead, call.query, next.item, next.head * group, call.queries, call.width);
    plan_rows<T>(ahead, call.gradient, next.item, next.head * group, call.queries, call.value_width);
    if (!b.has_all_keys)
        plan_rows<T>(ahead, call.output, next.item, next.head * group, call.queries, call.value_width);
    if (call.needs_operands) {
        plan_rows<T>(ahead, call.grad_value, next.item, next.head, call.keys, call.value_width);
        plan_rows<T>(ahead, call.grad_key, next.item, next.head, call.keys, call.width);
        plan_rows<T>(ahead, call.grad_query, next.item, next.head * group, call.queries, call.width);
    }
    ptrdiff_t products = (b.tile_keys >= call.keys ? 2 : 0) + (call.needs_operands ? 3 : 0);
    ahead.divide(group * call.queries * call.keys * products * (call.width + call.value_width) / (2 * W));
    for (int64_t member = 0; member < group; ++member) {
        for (ptrdiff_t row = 0; row < call.queries; row += height)
            backward_tile<T>(call, item, kv_head * group + member, b, targets, key_rows, row,
                             least(height, call.queries - row), grad_bias, set, ahead);
        if (grad_bias && call.bias_heads > 1) grad_bias += call.queries * call.keys;
        if (call.bias_heads == 1) set = false;
    }
    if (!call.needs_operands || in_place) return;
    unpack_rows(b.grad_keys, call.keys, call.width, nullptr, grad_key);
    unpack_rows(b.grad_values, call.keys, call.value_width, nullptr, grad_value);
}

// ------------------------------------------------------------------------------------------- bias from M

// log sigma(m) = min(m, 0) - ln(1 + e^-|m|), and its derivative sigma(-m).
void log_sigmoid(const float *logits, const float *gradient, float *result, int64_t count) {
    for (int64_t i = 0; i < count; i += W) {
        V m = load_first(logits + i, count - i);
        V e = exponential(m < 0.0f ? m : -m);
        V y = (m < 0.0f ? m : V{}) - logarithm_of_one_plus(e);
        if (gradient) y = load_first(gradient + i, count - i) * (m < 0.0f ? broadcast(1.0f) : e) / (e + 1.0f);
        store_first(result + i, y, count - i);
    }
}

// ------------------------------------------------------------------------------------------------ table

template <typename Layout> size_t scratch_of(const MaskpriorCall &call) {
    Scratch scratch{nullptr};
    Layout layout(call, scratch);
    (void)layout;
    return scratch.used;
}

bool any_forward(const MaskpriorCall &call, MaskpriorPair pair, MaskpriorPair next, float *memory) {
    return (call.is_bfloat16 ? forward<bfloat16> : forward<float>)(call, pair, next, memory);
}

void any_backward(const MaskpriorCall &call, MaskpriorPair pair, MaskpriorPair next, float *grad_bias, bool set,
                  float *memory) {
    (call.is_bfloat16 ? backward<bfloat16> : backward<float>)(call, pair, next, grad_bias, set, memory);
}

}  // namespace

extern const MaskpriorKernels MASKPRIOR_TABLE = {scratch_of<Forward>, scratch_of<Backward>, any_forward, any_backward,
                                                 log_sigmoid};
