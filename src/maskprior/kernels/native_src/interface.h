// The plain C interface: one struct of raw pointers and strides, so that nothing of torch is needed to build.
#pragma once

#include <stddef.h>
#include <stdint.h>

// Element (query i, column c) of head h of item b lies at data + b * batch + h * head + i * row + c.
struct MaskpriorRows {
    void *data;
    int64_t batch, head, row;
};

// Every field has eight bytes, in the order in which native.py packs them.
struct MaskpriorCall {
    int64_t batch, heads, kv_heads, queries, keys, width, value_width;
    int64_t bias_heads;   // 0: no bias; 1: shared by the heads; else one per query head
    int64_t is_bfloat16;  // the type of the operands and their gradients; all else is float32
    int64_t is_causal;
    int64_t needs_operands, needs_bias;
    int64_t threads;
    int64_t level;  // instruction set, see maskprior_level
    int64_t seed;
    double dropout_p;
    double scale;
    MaskpriorRows query, key, value;
    const float *bias;
    int64_t bias_head, bias_row;
    const uint8_t *allowed;  // or null
    int64_t allowed_batch, allowed_head, allowed_row, allowed_column;
    MaskpriorRows output;
    // [batch, heads, queries]: the highest score and the logarithm of the sum of e^(score - highest), 0 for a query
    // that may attend to nothing. Apart: their sum would lose the logarithm where all keys are strongly suppressed.
    float *peak, *log_total;
    MaskpriorRows gradient, grad_query, grad_key, grad_value;
    float *grad_bias;  // [bias_heads, queries, keys], overwritten
};

struct MaskpriorPair {
    int64_t item, head;
};

// What one instruction set's translation unit offers.
struct MaskpriorKernels {
    // Floats of scratch memory for one thread.
    size_t (*forward_scratch)(const MaskpriorCall &);
    size_t (*backward_scratch)(const MaskpriorCall &);
    // Forward of one item and query head; `next` is the pair after it. True if a score was +infinity.
    bool (*forward)(const MaskpriorCall &, MaskpriorPair pair, MaskpriorPair next, float *scratch);
    // Backward of one item and key head; adds to (or, if `set`, sets) the bias gradient of its query heads.
    void (*backward)(const MaskpriorCall &, MaskpriorPair pair, MaskpriorPair next, float *grad_bias, bool set,
                     float *scratch);
    // log sigma of `count` logits; with `gradient`, its gradient times sigma(-logit).
    void (*log_sigmoid)(const float *logits, const float *gradient, float *result, int64_t count);
};

extern const MaskpriorKernels maskprior_portable;
extern const MaskpriorKernels maskprior_avx2;
extern const MaskpriorKernels maskprior_avx512;
