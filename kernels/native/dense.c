/* Dense layers for few rows, without gradients: products, LayerNorm, rectifiers and sums, fused. dense.py documents the functions.
 *
 * Inside, the rows of a batch are the lanes: number k of a panel holds input k of up to LANES rows. Lanes never
 * interact, LayerNorm sums from panel entry to panel entry, and a weight is read once, as torch keeps it, and
 * multiplies all rows. So any number of rows works; those that are missing are computed as zeros and not stored. */

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#if LANES == 16 && !defined __AVX512F__
#define TILE 4
#else
#define TILE 8 /* outputs that are summed in registers at a time */
#endif

typedef float vec __attribute__((vector_size(4 * LANES), may_alias));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), may_alias));

typedef struct {
    const float *weight, *bias;
} affine; /* of a LayerNorm, or of a product, whose bias may be NULL */

#if LANES == 16
#define ROUNDS 4
#define INDICES(i) i, 16 + i, 1 + i, 17 + i, 2 + i, 18 + i, 3 + i, 19 + i, \
    4 + i, 20 + i, 5 + i, 21 + i, 6 + i, 22 + i, 7 + i, 23 + i
#else
#define ROUNDS 3
#define INDICES(i) i, 8 + i, 1 + i, 9 + i, 2 + i, 10 + i, 3 + i, 11 + i
#endif
#ifdef __clang__
#define INTERLEAVE(a, b, from) __builtin_shufflevector(a, b, INDICES(from))
#else
#define INTERLEAVE(a, b, from) __builtin_shuffle(a, b, (ints){INDICES(from)})
#endif

/* Transpose LANES vectors. Each round joins halves of pairs twice as far apart. */
INLINE void transpose(vec *a) {
    for (int round = 0; round < ROUNDS; round++) {
        vec b[LANES];
        for (int j = 0; j < LANES / 2; j++) {
            b[2 * j] = INTERLEAVE(a[j], a[j + LANES / 2], 0);
            b[2 * j + 1] = INTERLEAVE(a[j], a[j + LANES / 2], LANES / 2);
        }
        memcpy(a, b, sizeof b);
    }
}

/* panel[k][row] = x[row][k]: up to LANES rows of `size` numbers */
static void gather(vec *panel, const float *x, int64_t rows, int64_t size) {
    for (int64_t k = 0; k < size; k += LANES) {
        const int64_t width = size - k < LANES ? size - k : LANES;
        vec a[LANES];
        for (int64_t j = 0; j < LANES; j++) {
            a[j] = (vec){0};
            if (j < rows && width == LANES) a[j] = *(const loose *)(x + j * size + k);
            else if (j < rows) memcpy(a + j, x + j * size + k, width * sizeof(float));
        }
        transpose(a);
        memcpy(panel + k, a, width * sizeof(vec));
    }
}

static void scatter(float *x, const vec *panel, int64_t rows, int64_t size) {
    for (int64_t k = 0; k < size; k += LANES) {
        const int64_t width = size - k < LANES ? size - k : LANES;
        vec a[LANES];
        memset(a, 0, sizeof a);
        memcpy(a, panel + k, width * sizeof(vec));
        transpose(a);
        for (int64_t j = 0; j < rows; j++) {
            if (width == LANES) *(loose *)(x + j * size + k) = a[j];
            else memcpy(x + j * size + k, a + j, width * sizeof(float));
        }
    }
}

INLINE vec rectified(vec x) {
    ints dead = x <= 0.0f; /* a nan stays, as in torch */
    return (vec)(~dead & (ints)x);
}

/* `count` outputs of a product: y_i = b_i + sum over k of w_ik x_k, or y_i += the same */
INLINE void tile(vec *y, const vec *x, const float *w, const float *bias, int64_t K, int count, bool add, bool relu) {
    vec sums[TILE];
    for (int i = 0; i < count; i++) sums[i] = (vec){0};
    for (int64_t k = 0; k < K; k++)
        for (int i = 0; i < count; i++) sums[i] += w[i * K + k] * x[k];
    for (int i = 0; i < count; i++) {
        if (bias) sums[i] += bias[i];
        if (add) sums[i] += y[i];
        y[i] = relu ? rectified(sums[i]) : sums[i];
    }
}

INLINE void product(vec *y, const vec *x, affine a, int64_t K, int64_t N, bool add, bool relu) {
    int64_t n = 0;
    for (; n + TILE <= N; n += TILE)
        tile(y + n, x, a.weight + n * K, a.bias ? a.bias + n : 0, K, TILE, add, relu);
    for (; n < N; n++) tile(y + n, x, a.weight + n * K, a.bias ? a.bias + n : 0, K, 1, add, relu);
}

static void normalize(vec *y, const vec *x, affine a, float eps, int64_t size) {
    vec mean = {0}, square = {0}, scale;
    for (int64_t k = 0; k < size; k++) mean += x[k];
    mean /= (float)size;
    for (int64_t k = 0; k < size; k++) square += (x[k] - mean) * (x[k] - mean);
    square = square / (float)size + eps;
    for (int j = 0; j < LANES; j++) ((float *)&scale)[j] = 1.0f / sqrtf(((float *)&square)[j]);
    for (int64_t k = 0; k < size; k++) y[k] = (x[k] - mean) * scale * a.weight[k] + a.bias[k];
}

/* y = x wᵀ + b, rectified if relu: x [rows, K], w [N, K], y [rows, N]. The bias may be NULL. */
void linear(
    int64_t rows, int64_t K, int64_t N, int64_t threads, float relu, const float *x, const float *w,
    const float *bias, float *y
) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row += LANES) {
        const int64_t some = rows - row < LANES ? rows - row : LANES;
        vec in[K], out[N];
        gather(in, x + row * K, some, K);
        if (relu) product(out, in, (affine){w, bias}, K, N, false, true);
        else product(out, in, (affine){w, bias}, K, N, false, false);
        scatter(y + row * N, out, some, N);
    }
}

/* y = LN(x) wᵀ: x [rows, K], w [N, K], y [rows, N] */
void normalized_linear(
    int64_t rows, int64_t K, int64_t N, int64_t threads, float eps, const float *x, const float *norm,
    const float *norm_bias, const float *w, float *y
) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row += LANES) {
        const int64_t some = rows - row < LANES ? rows - row : LANES;
        vec in[K], out[N];
        gather(in, x + row * K, some, K);
        normalize(in, in, (affine){norm, norm_bias}, eps, K);
        product(out, in, (affine){w, 0}, K, N, false, false);
        scatter(y + row * N, out, some, N);
    }
}

/* z = x + y wᵀ, result = z + relu(LN(z) w1ᵀ + b1) w2ᵀ + b2: x, y, result [rows, d], w1 [ff, d], w2 [d, ff] */
void residual_feedforward(
    int64_t rows, int64_t d, int64_t ff, int64_t threads, float eps, const float *x, const float *y,
    const float *w, const float *norm, const float *norm_bias, const float *w1, const float *b1, const float *w2,
    const float *b2, float *result
) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row += LANES) {
        const int64_t some = rows - row < LANES ? rows - row : LANES;
        vec z[d], in[d], hidden[ff];
        gather(z, x + row * d, some, d);
        gather(in, y + row * d, some, d);
        product(z, in, (affine){w, 0}, d, d, true, false);
        normalize(in, z, (affine){norm, norm_bias}, eps, d);
        product(hidden, in, (affine){w1, b1}, d, ff, false, true);
        product(z, hidden, (affine){w2, b2}, ff, d, true, false);
        scatter(result + row * d, z, some, d);
    }
}
