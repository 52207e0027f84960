// What a query adds to its products with the keys: scale, bias, constraints and dropout.
#pragma once

#include "interface.h"
#include "simd.h"

namespace {

inline uint64_t mix(uint64_t x) {  // SplitMix64 (Steele, Lea and Flood 2014)
    x += 0x9e3779b97f4a7c15u;
    x = (x ^ (x >> 30)) * 0xbf58476d1ce4e5b9u;
    x = (x ^ (x >> 27)) * 0x94d049bb133111ebu;
    return x ^ (x >> 31);
}

// One query.
struct ScoreRow {
    const float *bias;
    const uint8_t *allowed;
    int64_t allowed_column;
    ptrdiff_t valid;  // its keys end here, by the length and by causality
    float scale, kept;
    uint32_t threshold;
    uint64_t dropout_key;

    V score(V product, ptrdiff_t key, ptrdiff_t count) const {
        V s = product * scale;
        if (bias) s += load_first(bias + key, count);
        if (!allowed) return s;
        return load_allowed(allowed + key * allowed_column, allowed_column, count) ? s : broadcast(NEGATIVE_INFINITY);
    }

    // Call f(key, scores) for the keys from first to last, W at a time; -infinity where not allowed.
    template <typename F> void each(const float *products, ptrdiff_t first, ptrdiff_t last, F f) const {
        ptrdiff_t key = first;
        for (; key + W <= least(valid, last); key += W) f(key, score(load(products + key), key, W));
        if (key < least(valid, last)) {
            V s = score(load(products + key), key, valid - key);
            f(key, lanes() < (int32_t)(valid - key) ? s : broadcast(NEGATIVE_INFINITY));
            key += W;
        }
        for (; key < last; key += W) f(key, broadcast(NEGATIVE_INFINITY));
    }

    // Multiply the numbers of the keys from first to last by 0 or 1 / (1 - p).
    void drop(float *x, ptrdiff_t first, ptrdiff_t last) const {
        for (ptrdiff_t key = first; key < last; key += W) {
            U number = hash((U)lanes() + (uint32_t)key, (uint32_t)dropout_key, (uint32_t)(dropout_key >> 32));
            I dropped = (I)(number >> 1) < (int32_t)threshold;
            float *p = x + key - first;
            store(p, dropped ? V{} : load(p) * kept);
        }
    }
};

// The queries of one tile.
struct Scores {
    const float *bias;
    const uint8_t *allowed;
    int64_t bias_row, allowed_row, allowed_column;
    ptrdiff_t keys, valid, valid_step;
    float scale, kept;
    uint32_t threshold;
    uint64_t dropout_row;
    float *peak, *log_total;

    Scores(const MaskpriorCall &call, int64_t item, int64_t head, ptrdiff_t row)
        : bias(nullptr), allowed(nullptr), bias_row(call.bias_row), allowed_row(call.allowed_row),
          allowed_column(call.allowed_column), keys(call.keys), valid(call.keys), valid_step(0),
          scale((float)call.scale), kept((float)(1.0 / (1.0 - call.dropout_p))),
          threshold((uint32_t)(call.dropout_p * 2147483648.0)),
          dropout_row(mix((uint64_t)call.seed) + (uint64_t)((item * call.heads + head) * call.queries + row)),
          peak(call.peak + (item * call.heads + head) * call.queries + row),
          log_total(call.log_total + (item * call.heads + head) * call.queries + row) {
        if (call.bias) bias = call.bias + (call.bias_heads > 1 ? head : 0) * call.bias_head + row * call.bias_row;
        if (call.allowed)
            allowed = call.allowed + item * call.allowed_batch + head * call.allowed_head + row * call.allowed_row;
        if (call.is_causal) {
            valid = row + call.keys - call.queries + 1;
            valid_step = 1;
        }
    }

    bool drops() const { return threshold > 0; }

    ScoreRow row(ptrdiff_t r) const {
        return {bias ? bias + r * bias_row : nullptr,
                allowed ? allowed + r * allowed_row : nullptr,
                allowed_column,
                least(keys, valid + r * valid_step),
                scale,
                kept,
                threshold,
                drops() ? mix(dropout_row + (uint64_t)r) : 0};
    }
};

}  // namespace
