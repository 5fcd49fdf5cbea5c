/* Rows and matrices, and heads of them: what the rules of fast weights are made of.
 *
 * A vector is a row of N blocks of LANES numbers; a matrix is an array of rows. Every product of a matrix and a
 * vector adds up rows, each scaled by one entry of the vector, so that lanes never interact. Where both W x and
 * Wᵀ x are needed, the matrix is stored both ways round; _T marks the transposed one. Padding of a row is zero
 * or never read: sums run over true sizes.
 *
 * Compiled once per size of heads (-DSIXTEENS=2 for 17 to 32 numbers): rows of known length live in registers. */

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "heads.h"
#include "vectors.h"

#define N (SIXTEENS * 16 / LANES)
#define EACH(i) for (int i = 0; i < N; i++)

typedef vec row[N];
typedef vec matrix[LANES * N * N];

/* ---- rows ---- */

INLINE const float *entries(const vec *x) { return (const float *)x; }

INLINE void load(vec *to, const float *x, int64_t size) {
    if (size == LANES * N) {
        EACH(i) to[i] = ((const loose *)x)[i];
    } else {
        memset(to, 0, N * sizeof(vec));
        memcpy(to, x, size * sizeof(float));
    }
}

INLINE void store(float *x, const vec *from, int64_t size) {
    if (size == LANES * N) {
        EACH(i) ((loose *)x)[i] = from[i];
    } else {
        memcpy(x, from, size * sizeof(float));
    }
}

INLINE void zero(vec *x) { EACH(i) x[i] = (vec){0}; }

INLINE float dot(const vec *x, const vec *y) {
    vec products = x[0] * y[0];
    for (int i = 1; i < N; i++) products += x[i] * y[i];
    return sum_lanes(products);
}

INLINE float sigmoid(float x) { return 1.0f / (1.0f + expf(-x)); }

INLINE void softmax(vec *x, int64_t size) {
    for (int64_t j = size; j < LANES * N; j++) ((float *)x)[j] = -INFINITY;
    vec largest = x[0], sums = {0};
    for (int i = 1; i < N; i++) largest = choose(x[i] > largest, x[i], largest);
    float m[LANES];
    memcpy(m, &largest, sizeof m);
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) m[j] = m[j + half] > m[j] ? m[j + half] : m[j];
    EACH(i) sums += x[i] = exponential(x[i] - m[0]);
    float total = sum_lanes(sums);
    EACH(i) x[i] /= total;
}

/* turn dp, the gradient of the softmax p, into that of its argument */
INLINE void softmax_backward(vec *dp, const vec *p) {
    float mean = dot(dp, p);
    EACH(i) dp[i] = p[i] * (dp[i] - mean);
}

/* ---- matrices ---- */

/* y = sum of x_i M_i, or y += the same */
INLINE void contract(vec *y, const vec *x, const vec *M, int64_t rows, bool add) {
    const float *s = entries(x);
    row even, odd; /* two independent chains of additions, to hide their latency */
    EACH(i) even[i] = add ? y[i] : (vec){0};
    zero(odd);
    int64_t j = 0;
    for (; j + 1 < rows; j += 2) {
        EACH(i) even[i] += s[j] * M[j * N + i];
        EACH(i) odd[i] += s[j + 1] * M[(j + 1) * N + i];
    }
    if (j < rows) EACH(i) even[i] += s[j] * M[j * N + i];
    EACH(i) y[i] = even[i] + odd[i];
}

/* M_i += x_i a, and y = sum of s_i M_i */
INLINE void write_and_contract(
    vec *y, const vec *scales, vec *M, const vec *x, const vec *a, int64_t rows
) {
    const float *s = entries(scales), *f = entries(x);
    row even, odd;
    zero(even), zero(odd);
    int64_t j = 0;
    for (; j + 1 < rows; j += 2) {
        EACH(i) even[i] += s[j] * (M[j * N + i] += f[j] * a[i]);
        EACH(i) odd[i] += s[j + 1] * (M[(j + 1) * N + i] += f[j + 1] * a[i]);
    }
    if (j < rows) EACH(i) even[i] += s[j] * (M[j * N + i] += f[j] * a[i]);
    EACH(i) y[i] = even[i] + odd[i];
}

/* M_i += x_i a, M_i += z_i c, and y = sum of s_i M_i */
INLINE void write_twice_and_contract(
    vec *y, const vec *scales, vec *M, const vec *x, const vec *a, const vec *z, const vec *c, int64_t rows
) {
    const float *s = entries(scales), *f = entries(x), *g = entries(z);
    row sum;
    zero(sum);
    for (int64_t j = 0; j < rows; j++)
        EACH(i) {
            vec now = M[j * N + i] + f[j] * a[i];
            sum[i] += s[j] * (M[j * N + i] = now + g[j] * c[i]);
        }
    EACH(i) y[i] = sum[i];
}

/* Loops over rows go by two, for two independent chains of additions. A row more than there are is padding: zeros. */
#define PAIRS(rows) int64_t j = 0; j < (rows); j += 2
#define BOTH(n) for (int n = 0; n < 2; n++)

INLINE vec decayed(vec x, vec lane, float row, bool of_rows) {
    if (of_rows) return row * x;
    return lane * x;
}

/* M_i = decayed M_i + z_i c + x_i a, and y = sum of s_i M_i. Decays are of rows, or of lanes; without `twice` z and c are
 * left out. */
INLINE void decay_write_and_contract(
    vec *y, const vec *scales, vec *M, const vec *decay, bool of_rows, const vec *z, const vec *c, const vec *x, const vec *a,
    bool twice, int64_t rows
) {
    const float *s = entries(scales), *f = entries(x), *g = entries(z), *rate = entries(decay);
    row sum[2];
    BOTH(n) zero(sum[n]);
    for (PAIRS(rows)) BOTH(n) EACH(i) {
        vec *to = M + (j + n) * N + i, now = decayed(*to, decay[i], rate[j + n], of_rows) + f[j + n] * a[i];
        if (twice) now += g[j + n] * c[i];
        sum[n][i] += s[j + n] * (*to = now);
    }
    EACH(i) y[i] = sum[0][i] + sum[1][i];
}

/* M_i += x_i a */
INLINE void write(vec *M, const vec *x, const vec *a, int64_t rows) {
    for (int64_t j = 0; j < rows; j++) EACH(i) M[j * N + i] += entries(x)[j] * a[i];
}

INLINE void clear(vec *M) { memset(M, 0, LANES * N * N * sizeof(vec)); }

/* load `[rows, size]` from x and pad */
INLINE void load_matrix(vec *M, const float *x, int64_t rows, int64_t size) {
    clear(M);
    for (int64_t j = 0; j < rows; j++) load(M + j * N, x + j * size, size);
}

INLINE void store_matrix(float *x, const vec *M, int64_t rows, int64_t size) {
    for (int64_t j = 0; j < rows; j++) store(x + j * size, M + j * N, size);
}

/* the transpose of LANES rows, N blocks apart */
INLINE void transpose_block(vec *to, const vec *from) {
    vec a[LANES];
    for (int j = 0; j < LANES; j++) a[j] = from[j * N];
    transpose_lanes(a);
    for (int j = 0; j < LANES; j++) to[j * N] = a[j];
}

INLINE void transpose(vec *to, const vec *from) {
    EACH(i) for (int j = 0; j < N; j++) transpose_block(to + j * LANES * N + i, from + i * LANES * N + j);
}

/* ---- heads ---- */

INLINE const float *of(strided x, int64_t t, int64_t b, int64_t h) {
    return x.at + t * x.t + b * x.b + h * x.h;
}

/* offset of [t, b, h] in a dense [T, B, H] */
INLINE int64_t flat(const span *s, int64_t t, int64_t b, int64_t h) { return (t * s->B + b) * s->H + h; }

INLINE bool fresh(const span *s, int64_t t, int64_t b) { return s->reset[t * s->B + b]; }

INLINE void load_transposed(vec *to, const float *x, const span *s) {
    matrix M;
    load_matrix(M, x, s->V, s->K);
    transpose(to, M);
}

INLINE void store_transposed(float *x, const vec *from, const span *s) {
    matrix M;
    transpose(M, from);
    store_matrix(x, M, s->V, s->K);
}

/* The only step of an unroll, from W to W_last as they lie: transposing both would take longer than the step.
 * y = W q + (k·q) u equals a read after the write of u, which is v without beta (and then there is no error). Rows of
 * W decay first, unless `decay` is NULL. */
INLINE void only_step(
    vec *y, vec *error, const float *W, float *W_last, bool fresh, const vec *q, const vec *k, const vec *v, const float *beta,
    const vec *decay, const span *s
) {
    const float match = dot(k, q);
    row u, now;
    EACH(i) {
        vec with_k[LANES], with_q[LANES];
        for (int64_t j = 0; j < LANES; j++) {
            const int64_t at = i * LANES + j;
            zero(now);
            if (at < s->V && !fresh) load(now, W + at * s->K, s->K);
            with_k[j] = now[0] * k[0], with_q[j] = now[0] * q[0];
            for (int c = 1; c < N; c++) with_k[j] += now[c] * k[c], with_q[j] += now[c] * q[c];
        }
        vec read_k = sums(with_k), read_q = sums(with_q);
        if (decay) read_k *= decay[i], read_q *= decay[i];
        u[i] = v[i];
        if (beta) error[i] = v[i] - read_k, u[i] = *beta * error[i];
        y[i] = read_q + match * u[i];
    }
    for (int64_t j = 0; j < s->V; j++) {
        zero(now);
        if (!fresh) load(now, W + j * s->K, s->K);
        if (decay) EACH(i) now[i] *= entries(decay)[j];
        EACH(i) now[i] += entries(u)[j] * k[i];
        store(W_last + j * s->K, now, s->K);
    }
}
