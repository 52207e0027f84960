// Vectors of W floats by the compilers' vector extension: one source for every instruction set.
// Everything is in an unnamed namespace, as each translation unit is built for another instruction set.
#pragma once

#include <stddef.h>
#include <stdint.h>
#include <string.h>

#if defined(__AVX512F__) || defined(__AVX2__)
#include <immintrin.h>
#endif

// Loops over registers must vanish, or what they index lives in memory.
#if defined(__clang__)
#define UNROLL _Pragma("clang loop unroll(full)")
#else
#define UNROLL _Pragma("GCC unroll 32")
#endif

namespace {

#if defined(__AVX512F__)
constexpr int W = 16;          // floats in a vector
constexpr int MAX_COLUMNS = 4; // vectors side by side in a register tile of the products
#elif defined(__AVX2__)
constexpr int W = 8;
constexpr int MAX_COLUMNS = 2;
#else
constexpr int W = 4;
constexpr int MAX_COLUMNS = 2;
#endif

typedef float V __attribute__((vector_size(W * 4)));
typedef float UnalignedV __attribute__((vector_size(W * 4), aligned(4)));
typedef int32_t I __attribute__((vector_size(W * 4)));
typedef uint32_t U __attribute__((vector_size(W * 4)));
typedef uint16_t Half __attribute__((vector_size(W * 2)));
typedef uint8_t Bytes __attribute__((vector_size(W)));

struct bfloat16 {
    uint16_t bits;
};

constexpr float NEGATIVE_INFINITY = -__builtin_inff();

inline ptrdiff_t padded(ptrdiff_t n) { return (n + W - 1) / W * W; }
inline ptrdiff_t least(ptrdiff_t a, ptrdiff_t b) { return a < b ? a : b; }

inline V broadcast(float x) { return x - V{}; }
inline U broadcast(uint32_t x) { return x - U{}; }

inline I lanes() {
    I index;
    for (int i = 0; i < W; ++i) index[i] = i;
    return index;
}

inline V load(const float *p) { return *reinterpret_cast<const UnalignedV *>(p); }
inline void store(float *p, V x) { *reinterpret_cast<UnalignedV *>(p) = x; }

// The first n lanes, zeros after them; nothing beyond them is read or written.
inline V load_first(const float *p, ptrdiff_t n) {
    if (n >= W) return load(p);
#if defined(__AVX512F__)
    return (V)_mm512_maskz_loadu_ps((__mmask16)((1u << n) - 1), p);
#elif defined(__AVX2__)
    return (V)_mm256_maskload_ps(p, (__m256i)(lanes() < (int32_t)n));
#else
    V x{};
    memcpy(&x, p, n * sizeof(float));
    return x;
#endif
}

inline void store_first(float *p, V x, ptrdiff_t n) {
    if (n >= W) return store(p, x);
#if defined(__AVX512F__)
    _mm512_mask_storeu_ps(p, (__mmask16)((1u << n) - 1), (__m512)x);
#elif defined(__AVX2__)
    _mm256_maskstore_ps(p, (__m256i)(lanes() < (int32_t)n), (__m256)x);
#else
    memcpy(p, &x, n * sizeof(float));
#endif
}

inline V load_first(const bfloat16 *p, ptrdiff_t n) {
    Half half{};
    if (n >= W)
        memcpy(&half, p, sizeof half);
    else
        memcpy(&half, p, n * sizeof(bfloat16));
    return (V)(__builtin_convertvector(half, U) << 16);
}

// Rounds to the nearest, ties to even; NaN stays NaN.
inline void store_first(bfloat16 *p, V x, ptrdiff_t n) {
    U bits = (U)x;
    U rounded = (bits + 0x7fff + ((bits >> 16) & 1)) >> 16;
    U quiet = (bits >> 16) | 0x40;
    Half half = __builtin_convertvector(x == x ? rounded : quiet, Half);
    memcpy(p, &half, least(n, W) * sizeof(bfloat16));
}

// Lanes whose key is allowed; column is the stride of the keys, 0 or 1.
inline I load_allowed(const uint8_t *p, int64_t column, ptrdiff_t n) {
    if (column == 0) return I{} - (*p != 0);
    Bytes bytes{};
    memcpy(&bytes, p, least(n, W));
    return __builtin_convertvector(bytes, I) != 0;
}

template <int... N> struct Indices {};
template <int N, int... Rest> struct UpTo : UpTo<N - 1, N - 1, Rest...> {};
template <int... Rest> struct UpTo<0, Rest...> {
    typedef Indices<Rest...> type;
};

template <int... N> inline V shuffle(V a, V b, Indices<N...>) {
#if defined(__clang__)
    return __builtin_shufflevector(a, b, N...);
#else
    return __builtin_shuffle(a, b, I{N...});
#endif
}
template <int... N> inline V low_halves(V a, V b, Indices<N...>) {
    return shuffle(a, b, Indices<(N / 2 + (N % 2) * W)...>());
}
template <int... N> inline V high_halves(V a, V b, Indices<N...>) {
    return shuffle(a, b, Indices<(N / 2 + W / 2 + (N % 2) * W)...>());
}

// Transpose W x W by log2(W) perfect shuffles.
inline void transpose(V (&x)[W]) {
    typename UpTo<W>::type all;
    UNROLL for (int step = 1; step < W; step *= 2) {
        V y[W];
        UNROLL for (int i = 0; i < W / 2; ++i) {
            y[2 * i] = low_halves(x[i], x[i + W / 2], all);
            y[2 * i + 1] = high_halves(x[i], x[i + W / 2], all);
        }
        UNROLL for (int i = 0; i < W; ++i) x[i] = y[i];
    }
}

// A NaN is passed on or, if a later number replaces it, shows again in the exponential.
inline V highest(V a, V b) { return a > b ? a : b; }  // one instruction on x86

// Lane r of the result combines the lanes of the vector x[r]: each step halves the vectors, and leaves the lanes
// of two in one.
template <typename F> V fold(V (&x)[W], F combine) {
    typename UpTo<W>::type all;
    UNROLL for (int half = W / 2; half > 0; half /= 2)
        UNROLL for (int i = 0; i < half; ++i)
            x[i] = combine(low_halves(x[i], x[i + half], all), high_halves(x[i], x[i + half], all));
    return x[0];
}

inline V maxima(V (&x)[W]) { return fold(x, highest); }
inline V sums(V (&x)[W]) {
    return fold(x, [](V a, V b) { return a + b; });
}

inline bool any(I condition) {
    int32_t found = 0;
    for (int i = 0; i < W; ++i) found |= condition[i];
    return found != 0;
}

// e^x for x <= 0 within 2 units in the last place of results above 1e-37 and zero below, so that no denormal
// number reaches the products. 2^f on [-1/2, 1/2] is the minimax polynomial of degree 6 (relative error 2e-9).
inline V exponential(V x) {
    const float shift = 12582912.0f;  // 1.5 * 2^23 rounds to an integer
    V z = x * 1.44269504f;
    V rounded = z + shift;
    V whole = rounded - shift, f = z - whole;
    V p = 0.00015345812f * f + 0.00133999312f;
    p = p * f + 0.00961848896f;
    p = p * f + 0.05550328777f;
    p = p * f + 0.24022646891f;
    p = p * f + 0.69314720574f;
    p = p * f + 1.0f;
#if defined(__AVX512F__)
    __mmask16 normal = _mm512_cmp_ps_mask((__m512)x, _mm512_set1_ps(-85.0f), _CMP_NLT_UQ);
    return (V)_mm512_maskz_scalef_ps(normal, (__m512)p, (__m512)whole);
#else
    V power = (V)(((I)rounded << 23) + 0x3f800000);
    return x < -85.0f ? V{} : p * power;
#endif
}

// ln x for normal x > 0: x = 2^n m with m in [0.7, 1.4], ln m = 2 artanh((m - 1) / (m + 1)) by its series.
inline V logarithm(V x) {
    I exponent = ((I)x - 0x3f3504f3) >> 23;
    V m = (V)((I)x - (exponent << 23));
    V t = (m - 1.0f) / (m + 1.0f), u = t * t;
    V series = ((0.2222222222f * u + 0.2857142857f) * u + 0.4f) * u + 0.6666666667f;
    return __builtin_convertvector(exponent, V) * 0.69314718056f + (series * u * t + 2.0f * t);
}

// ln(1 + x) for x in [0, 1], to float precision also near 0: 2 artanh(x / (2 + x)) by its series.
inline V logarithm_of_one_plus(V x) {
    V t = x / (x + 2.0f), u = t * t;
    V series = 0.1333333333f * u + 0.1538461538f;
    series = series * u + 0.1818181818f;
    series = series * u + 0.2222222222f;
    series = series * u + 0.2857142857f;
    series = series * u + 0.4f;
    series = series * u + 0.6666666667f;
    return series * u * t + 2.0f * t;
}

// One uniform 32-bit number per lane from a row's two keys and the lane's column (the finaliser of MurmurHash3).
inline U hash(U column, uint32_t first, uint32_t second) {
    U x = column * 0x9e3779b9u + first;
    x = (x ^ (x >> 16)) * 0x85ebca6bu;
    x = (x ^ second ^ (x >> 13)) * 0xc2b2ae35u;
    return x ^ (x >> 16);
}

}  // namespace
