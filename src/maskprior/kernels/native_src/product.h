// C (+)= A B with register tiles. A is read by scalars at any two strides (so a transposed A costs nothing),
// B and C by vectors along their rows.
#pragma once

#include "ahead.h"
#include "simd.h"

namespace {

struct Left {
    const float *data;
    ptrdiff_t row, step;  // strides of the result's row and of the summed index
};

constexpr ptrdiff_t SEGMENT = 8;  // summed indices between two looks ahead

template <int R, int C, bool Add>
void tile(ptrdiff_t length, Left a, const float *b, ptrdiff_t b_step, float *c, ptrdiff_t c_row, Ahead &ahead) {
    V sums[R * C];
    UNROLL for (int i = 0; i < R * C; ++i) sums[i] = Add ? load(c + i / C * c_row + i % C * W) : V{};
    while (length > 0) {
        ptrdiff_t steps = least(length, SEGMENT);
        length -= steps;
        ahead.step(R * C * steps);
        for (; steps > 0; --steps, a.data += a.step, b += b_step) {
            UNROLL for (int i = 0; i < R * C; ++i) sums[i] += a.data[i / C * a.row] * load(b + i % C * W);
        }
    }
    UNROLL for (int i = 0; i < R * C; ++i) store(c + i / C * c_row + i % C * W, sums[i]);
}

typedef void Tile(ptrdiff_t, Left, const float *, ptrdiff_t, float *, ptrdiff_t, Ahead &);

// Rows of a register tile with C columns: as many as the registers hold.
template <int C> constexpr int max_rows() {
#if defined(__AVX512F__)
    return C == 4 ? 6 : 8;
#elif defined(__AVX2__)
    return C == 2 ? 6 : 8;
#else
    return 4;
#endif
}

template <int C, bool Add, int R = max_rows<C>()> struct TileOf {
    static Tile *rows(ptrdiff_t count) { return count == R ? tile<R, C, Add> : TileOf<C, Add, R - 1>::rows(count); }
};
template <int C, bool Add> struct TileOf<C, Add, 0> {
    static Tile *rows(ptrdiff_t) { return nullptr; }
};

template <int C>
void strip(ptrdiff_t rows, ptrdiff_t length, Left a, const float *b, ptrdiff_t b_step, float *c, ptrdiff_t c_row,
           bool add, Ahead &ahead) {
    ptrdiff_t tiles = (rows + max_rows<C>() - 1) / max_rows<C>();
    for (; tiles > 0; --tiles) {
        ptrdiff_t height = (rows + tiles - 1) / tiles;  // even heights: no small tile is left over
        Tile *run = add ? TileOf<C, true>::rows(height) : TileOf<C, false>::rows(height);
        run(length, a, b, b_step, c, c_row, ahead);
        a.data += height * a.row;
        c += height * c_row;
        rows -= height;
    }
}

// A strip of `vectors` <= MAX_COLUMNS columns.
inline void product_strip(ptrdiff_t rows, int vectors, ptrdiff_t length, Left a, const float *b, ptrdiff_t b_step,
                          float *c, ptrdiff_t c_row, bool add, Ahead &ahead) {
    switch (vectors) {
    case 1: return strip<1>(rows, length, a, b, b_step, c, c_row, add, ahead);
    case 2: return strip<2>(rows, length, a, b, b_step, c, c_row, add, ahead);
#if defined(__AVX512F__)
    case 3: return strip<3>(rows, length, a, b, b_step, c, c_row, add, ahead);
    default: return strip<4>(rows, length, a, b, b_step, c, c_row, add, ahead);
#endif
    }
}

// C [rows, columns] (+)= A B for B [length, columns] in row order; columns a multiple of W.
inline void product(ptrdiff_t rows, ptrdiff_t columns, ptrdiff_t length, Left a, const float *b, ptrdiff_t b_row,
                    float *c, ptrdiff_t c_row, bool add, Ahead &ahead) {
    for (ptrdiff_t column = 0; column < columns;) {
        ptrdiff_t strips = (columns - column + MAX_COLUMNS * W - 1) / (MAX_COLUMNS * W);
        ptrdiff_t vectors = ((columns - column) / W + strips - 1) / strips;
        product_strip(rows, (int)vectors, length, a, b + column, b_row, c + column, c_row, add, ahead);
        column += vectors * W;
    }
}

// The products of W rows with one: their sums over the features stay in vectors until one folds them.
inline V products_with(const float *const (&rows)[W], const float *other, ptrdiff_t width) {
    V x[W];
    UNROLL for (int i = 0; i < W; ++i) x[i] = V{};
    for (ptrdiff_t f = 0; f < width; f += W) {
        V feature = load(other + f);
        UNROLL for (int i = 0; i < W; ++i) x[i] += load(rows[i] + f) * feature;
    }
    return sums(x);
}

// C [rows, keys] = A B' for few keys, the rest of their vector zero.
inline void product_of_few(ptrdiff_t rows, ptrdiff_t keys, ptrdiff_t width, Left a, const float *b, ptrdiff_t b_row,
                           float *c, ptrdiff_t c_row, Ahead &ahead) {
    for (ptrdiff_t r = 0; r < rows; ++r) store(c + r * c_row, V{});
    for (; rows > 0; rows -= W, a.data += W * a.row, c += W * c_row) {
        const float *from[W];
        for (int i = 0; i < W; ++i) from[i] = a.data + least(i, rows - 1) * a.row;
        for (ptrdiff_t key = 0; key < keys; ++key) {
            ahead.step(W * width / keys);
            V sum = products_with(from, b + key * b_row, width);
            for (int i = 0; i < least(rows, W); ++i) c[i * c_row + key] = sum[i];
        }
    }
}

// Keys side by side in strips of MAX_COLUMNS vectors: strip s holds, for each feature, its keys. A vector for a
// few more keys would be mostly waste, so those stay rows.
constexpr ptrdiff_t STRIP = MAX_COLUMNS * W;
constexpr ptrdiff_t FEW = W / 3;

struct Strips {
    const float *data;
    ptrdiff_t keys;  // a multiple of W
    const float *rest;
    ptrdiff_t rest_keys, rest_row;
};

// C [rows, keys] = A B for the keys from `first` (a multiple of STRIP) to `last` (one of W).
inline void product_of_strips(ptrdiff_t rows, ptrdiff_t first, ptrdiff_t last, ptrdiff_t width, Left a, Strips b,
                              float *c, ptrdiff_t c_row, Ahead &ahead) {
    for (ptrdiff_t key = first; key < least(last, b.keys); key += STRIP) {
        ptrdiff_t wide = least(STRIP, least(last, b.keys) - key);
        product_strip(rows, (int)(wide / W), width, a, b.data + key * width, wide, c + key - first, c_row, false,
                      ahead);
    }
    if (last > b.keys)
        product_of_few(rows, b.rest_keys, width, a, b.rest, b.rest_row, c + b.keys - first, c_row, ahead);
}

}  // namespace
