/* The rules of fast weights on CPUs, forward and backward: one head of one batch row at a time, its fast weights
 * in the first-level cache from the first step to the last. README.md has the algorithm.
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

typedef float half __attribute__((vector_size(32), may_alias));
typedef float quarter __attribute__((vector_size(16), may_alias));
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

INLINE float sum_lanes(vec x) {
    half a[LANES / 8];
    quarter b[2];
    memcpy(a, &x, sizeof a);
    if (LANES == 16) a[0] += a[LANES / 8 - 1];
    memcpy(b, a, sizeof b);
    b[0] += b[1];
    return (b[0][0] + b[0][2]) + (b[0][1] + b[0][3]);
}

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

/* entry j is the sum of the numbers in a_j; a is overwritten */
INLINE vec sums(vec *a) {
    for (int half = LANES / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) a[j] = INTERLEAVE(a[j], a[j + half], 0) + INTERLEAVE(a[j], a[j + half], LANES / 2);
    return a[0];
}

/* ---- the rules ---- */

delta_rule delta_forward;
delta_rnn_rule delta_rnn_forward;
recurrent_delta_rule recurrent_delta_forward;

#ifdef _OPENMP
extern int omp_get_thread_num(void);
#else
#define omp_get_thread_num() 0
#endif

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

/* One delta-rule step: updates W_T; u is what was written, beta (v - W k). */
INLINE void delta_step(
    vec *y, vec *error, vec *W_T, const vec *q, const vec *k, const vec *v, float beta, int64_t K
) {
    row u;
    contract(error, k, W_T, K, false);
    EACH(i) error[i] = v[i] - error[i];
    EACH(i) u[i] = beta * error[i];
    write_and_contract(y, q, W_T, k, u, K);
}

/* The only step of an unroll, from W to W_last as they lie: transposing both would take longer than the step.
 * y = W q + (k·q) u equals a read after the write of u, which is v without beta (and then there is no error). */
INLINE void only_step(
    vec *y, vec *error, const float *W, float *W_last, bool fresh, const vec *q, const vec *k, const vec *v, const float *beta,
    const span *s
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
        u[i] = v[i];
        if (beta) error[i] = v[i] - sums(with_k), u[i] = *beta * error[i];
        y[i] = sums(with_q) + match * u[i];
    }
    for (int64_t j = 0; j < s->V; j++) {
        zero(now);
        if (!fresh) load(now, W + j * s->K, s->K);
        EACH(i) now[i] += entries(u)[j] * k[i];
        store(W_last + j * s->K, now, s->K);
    }
}

/* The sum rule if beta.at is NULL. error may be NULL: then it is not stored. */
void delta_forward(
    const span *s, strided q, strided k, strided v, strided beta, const float *W, float *y, float *W_last,
    float *error
) {
    const bool alone = s->T == 1;
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const int64_t h = head / s->B, b = head % s->B, first = flat(s, 0, b, h);
        const float *from = W + first * s->V * s->K;
        float *to = W_last + first * s->V * s->K;
        matrix now;
        if (!alone) load_transposed(now, from, s);
        for (int64_t t = 0; t < s->T; t++) {
            const int64_t at = flat(s, t, b, h);
            row q_row, k_row, v_row, y_row, error_row;
            if (fresh(s, t, b) && !alone) clear(now);
            load(q_row, of(q, t, b, h), s->K);
            load(k_row, of(k, t, b, h), s->K);
            load(v_row, of(v, t, b, h), s->V);
            if (alone) {
                only_step(y_row, error_row, from, to, fresh(s, t, b), q_row, k_row, v_row, of(beta, t, b, h), s);
            } else if (beta.at) {
                delta_step(y_row, error_row, now, q_row, k_row, v_row, *of(beta, t, b, h), s->K);
            } else {
                write_and_contract(y_row, q_row, now, k_row, v_row, s->K);
            }
            if (error) store(error + at * s->V, error_row, s->V);
            store(y + at * s->V, y_row, s->V);
        }
        if (!alone) store_transposed(to, now, s);
    }
}

/* The gradients of y and of the last W may be NULL, meaning zeros. */
void delta_backward(
    const span *s, strided q, strided k, strided v, strided beta, const float *W, const float *error,
    const float *dy, const float *dW_last, float *dq, float *dk, float *dv, float *dbeta, float *dW
) {
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const int64_t h = head / s->B, b = head % s->B, first = flat(s, 0, b, h);
        matrix G, G_T, now;
        row q_row, k_row, u, dy_row, dk_row, dv_row, late_v, late_k; /* as in delta_step_backward */
        zero(dy_row), zero(late_v), zero(late_k);
        clear(G), clear(G_T);
        if (dW_last) {
            load_matrix(G, dW_last + first * s->V * s->K, s->V, s->K);
            transpose(G_T, G);
        }
        for (int64_t t = s->T - 1; t >= 0; t--) {
            const int64_t at = flat(s, t, b, h);
            const float strength = beta.at ? *of(beta, t, b, h) : 1.0f;
            load(q_row, of(q, t, b, h), s->K);
            load(k_row, of(k, t, b, h), s->K);
            load(u, beta.at ? error + at * s->V : of(v, t, b, h), s->V);
            EACH(i) u[i] *= strength;
            if (dy) load(dy_row, dy + at * s->V, s->V);
            if (beta.at) {
                write_twice_and_contract(dk_row, u, G, late_v, late_k, dy_row, q_row, s->V);
                write_twice_and_contract(dv_row, k_row, G_T, late_k, late_v, q_row, dy_row, s->K);
            } else {
                write_and_contract(dk_row, u, G, dy_row, q_row, s->V);
                write_and_contract(dv_row, k_row, G_T, q_row, dy_row, s->K);
            }
            store(dk + at * s->K, dk_row, s->K);
            if (beta.at) {
                row error_row;
                load(error_row, error + at * s->V, s->V);
                dbeta[at] = dot(dv_row, error_row);
                EACH(i) dv_row[i] *= strength;
                EACH(i) late_v[i] = -dv_row[i];
                EACH(i) late_k[i] = k_row[i];
            }
            store(dv + at * s->V, dv_row, s->V);
            if (fresh(s, t, b)) clear(G), clear(G_T), zero(late_v), zero(late_k);
        }
        write(G, late_v, late_k, s->V);
        store_matrix(dW + first * s->V * s->K, G, s->V, s->K);

        load_matrix(now, W + first * s->V * s->K, s->V, s->K);
        for (int64_t t = 0; t < s->T; t++) {
            const int64_t at = flat(s, t, b, h);
            row dq_row;
            if (fresh(s, t, b)) clear(now);
            load(k_row, of(k, t, b, h), s->K);
            load(u, beta.at ? error + at * s->V : of(v, t, b, h), s->V);
            if (beta.at) {
                const float strength = *of(beta, t, b, h);
                row minus_dv;
                EACH(i) u[i] *= strength;
                load(dk_row, dk + at * s->K, s->K);
                load(minus_dv, dv + at * s->V, s->V);
                EACH(i) minus_dv[i] = -minus_dv[i];
                contract(dk_row, minus_dv, now, s->V, true);
                store(dk + at * s->K, dk_row, s->K);
            }
            if (dy) load(dy_row, dy + at * s->V, s->V);
            write_and_contract(dq_row, dy_row, now, u, k_row, s->V);
            store(dq + at * s->K, dq_row, s->K);
        }
    }
}

/* error and p, which backward needs, may be NULL. */
void delta_rnn_forward(
    const span *s, strided z, strided k, strided v, strided beta, const float *R, const float *y0, float *y,
    float *R_last, float *error, float *p
) {
    const bool alone = s->T == 1;
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const int64_t h = head / s->B, b = head % s->B, first = flat(s, 0, b, h);
        matrix now;
        row p_row, k_row, v_row, z_row, y_row, error_row;
        const float *from = R + first * s->V * s->K;
        float *to = R_last + first * s->V * s->K;
        if (!alone) load_transposed(now, from, s);
        load(p_row, y0 + first * s->V, s->V);
        for (int64_t t = 0; t < s->T; t++) {
            const int64_t at = flat(s, t, b, h);
            if (fresh(s, t, b)) clear(now), zero(p_row);
            softmax(p_row, s->V);
            load(k_row, of(k, t, b, h), s->K);
            load(v_row, of(v, t, b, h), s->V);
            load(z_row, of(z, t, b, h), s->V);
            if (alone) only_step(y_row, error_row, from, to, fresh(s, t, b), p_row, k_row, v_row, of(beta, t, b, h), s);
            else delta_step(y_row, error_row, now, p_row, k_row, v_row, *of(beta, t, b, h), s->K);
            EACH(i) y_row[i] += z_row[i];
            store(y + at * s->V, y_row, s->V);
            if (error) {
                store(error + at * s->V, error_row, s->V);
                store(p + at * s->V, p_row, s->V);
            }
            memcpy(p_row, y_row, sizeof p_row);
        }
        if (!alone) store_transposed(to, now, s);
    }
}

/* W before every step, T matrices, by repeating the writes: the same numbers. */
INLINE void replay(
    vec *past, const span *s, strided k, strided beta, const float *W, const float *error, int64_t b, int64_t h
) {
    const int64_t size = LANES * N * N;
    row k_row, u;
    load_matrix(past, W + flat(s, 0, b, h) * s->V * s->K, s->V, s->K);
    for (int64_t t = 0; t < s->T; t++) {
        vec *now = past + t * size;
        if (fresh(s, t, b)) clear(now);
        if (t == s->T - 1) break;
        const float strength = *of(beta, t, b, h);
        load(k_row, of(k, t, b, h), s->K);
        load(u, error + flat(s, t, b, h) * s->V, s->V);
        EACH(i) u[i] *= strength;
        for (int64_t j = 0; j < LANES * N; j++) /* u is zero past V */
            EACH(i) now[size + j * N + i] = now[j * N + i] + entries(u)[j] * k_row[i];
    }
}

/* Backward of one delta-rule step; W is the one before it, G and G_T move from after it to before it but for the
 * write of late_v late_kᵀ, which the next step does with its own: memory bounds writes. */
INLINE float delta_step_backward(
    vec *dq, vec *dk, vec *dv, vec *G, vec *G_T, vec *late_v, vec *late_k, const vec *W, const vec *q, const vec *k,
    float beta, const vec *error, const vec *dy, const span *s
) {
    row u;
    EACH(i) u[i] = beta * error[i];
    write_twice_and_contract(dk, u, G, late_v, late_k, dy, q, s->V);
    write_twice_and_contract(dv, k, G_T, late_k, late_v, q, dy, s->K); /* the gradient of u */
    const float dbeta = dot(dv, error), match = dot(u, dy);
    EACH(i) dv[i] *= beta;
    EACH(i) late_v[i] = -dv[i];
    EACH(i) late_k[i] = k[i];
    contract(dq, dy, W, s->V, false);
    EACH(i) dq[i] += match * k[i];
    contract(dk, late_v, W, s->V, true);
    return dbeta;
}

/* `past` has room for T matrices a thread. */
void delta_rnn_backward(
    const span *s, strided k, strided beta, const float *R, const float *error, const float *p, const float *dy,
    const float *dR_last, float *dz, float *dk, float *dv, float *dbeta, float *dR, float *dy0, vec *past
) {
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const int64_t h = head / s->B, b = head % s->B, first = flat(s, 0, b, h);
        matrix G, G_T;
        row p_row, k_row, error_row, dy_row, dp_row, dk_row, dv_row, late_v, late_k;
        clear(G), clear(G_T), zero(dp_row), zero(late_v), zero(late_k);
        if (dR_last) {
            load_matrix(G, dR_last + first * s->V * s->K, s->V, s->K);
            transpose(G_T, G);
        }
        vec *W_before = past + omp_get_thread_num() * s->T * LANES * N * N;
        replay(W_before, s, k, beta, R, error, b, h);
        for (int64_t t = s->T - 1; t >= 0; t--) {
            const int64_t at = flat(s, t, b, h);
            zero(dy_row);
            if (dy) load(dy_row, dy + at * s->V, s->V);
            EACH(i) dy_row[i] += dp_row[i];
            store(dz + at * s->V, dy_row, s->V);
            load(p_row, p + at * s->V, s->V);
            load(k_row, of(k, t, b, h), s->K);
            load(error_row, error + at * s->V, s->V);
            dbeta[at] = delta_step_backward(
                dp_row, dk_row, dv_row, G, G_T, late_v, late_k, W_before + t * LANES * N * N, p_row, k_row, *of(beta, t, b, h),
                error_row, dy_row, s
            );
            store(dk + at * s->K, dk_row, s->K);
            store(dv + at * s->V, dv_row, s->V);
            softmax_backward(dp_row, p_row);
            if (fresh(s, t, b)) clear(G), clear(G_T), zero(dp_row), zero(late_v), zero(late_k);
        }
        write(G, late_v, late_k, s->V);
        store_matrix(dR + first * s->V * s->K, G, s->V, s->K);
        store(dy0 + first * s->V, dp_row, s->V);
    }
}

/* The slow recurrent weights of one head, or their transposes. */
typedef struct {
    matrix q, k, v;
    row beta;
} recurrent;

INLINE void load_recurrent(
    recurrent *to, const float *Rq, const float *Rk, const float *Rv, const float *rb, int64_t h, const span *s
) {
    load_matrix(to->q, Rq + h * s->V * s->K, s->V, s->K);
    load_matrix(to->k, Rk + h * s->V * s->K, s->V, s->K);
    load_matrix(to->v, Rv + h * s->V * s->V, s->V, s->V);
    load(to->beta, rb + h * s->V, s->V);
}

INLINE void transpose_in_place(vec *M) {
    matrix copy;
    memcpy(copy, M, LANES * N * N * sizeof(vec));
    transpose(M, copy);
}

/* g and what follows, which backward needs, may all be NULL. */
void recurrent_delta_forward(
    const span *s, strided q, strided k, strided v, strided beta, const float *Rq, const float *Rk, const float *Rv,
    const float *rb, const float *W, const float *y0, float *y, float *W_last, float *g, float *q_used,
    float *k_used, float *beta_used, float *error
) {
    const bool alone = s->T == 1;
#pragma omp parallel num_threads(s->threads) if (s->threads > 1)
    {
        recurrent R;
        int64_t loaded = -1; /* the head whose slow weights these are */
#pragma omp for
        for (int64_t head = 0; head < s->B * s->H; head++) {
            const int64_t h = head / s->B, b = head % s->B, first = flat(s, 0, b, h);
            matrix now;
            row q_row, k_row, v_row, y_row, g_row, error_row;
            if (loaded != h) load_recurrent(&R, Rq, Rk, Rv, rb, h, s), loaded = h;
            const float *from = W + first * s->V * s->K;
            float *to = W_last + first * s->V * s->K;
            if (!alone) load_transposed(now, from, s);
            load(y_row, y0 + first * s->V, s->V);
            for (int64_t t = 0; t < s->T; t++) {
                const int64_t at = flat(s, t, b, h);
                if (fresh(s, t, b)) clear(now), zero(y_row);
                EACH(i) g_row[i] = tanh_of(y_row[i]);
                load(q_row, of(q, t, b, h), s->K);
                load(k_row, of(k, t, b, h), s->K);
                load(v_row, of(v, t, b, h), s->V);
                contract(q_row, g_row, R.q, s->V, true);
                contract(k_row, g_row, R.k, s->V, true);
                contract(v_row, g_row, R.v, s->V, true);
                softmax(q_row, s->K);
                softmax(k_row, s->K);
                const float strength = sigmoid(*of(beta, t, b, h) + dot(g_row, R.beta));
                if (alone) only_step(y_row, error_row, from, to, fresh(s, t, b), q_row, k_row, v_row, &strength, s);
                else delta_step(y_row, error_row, now, q_row, k_row, v_row, strength, s->K);
                store(y + at * s->V, y_row, s->V);
                if (g) {
                    store(g + at * s->V, g_row, s->V);
                    store(q_used + at * s->K, q_row, s->K);
                    store(k_used + at * s->K, k_row, s->K);
                    store(error + at * s->V, error_row, s->V);
                    beta_used[at] = strength;
                }
            }
            if (!alone) store_transposed(to, now, s);
        }
    }
}

/* `past` has room for T matrices a thread. */
void recurrent_delta_backward(
    const span *s, const float *Rq, const float *Rk, const float *Rv, const float *rb, const float *W,
    const float *g, const float *q_used, const float *k_used, const float *beta_used, const float *error,
    const float *dy, const float *dW_last, float *dq, float *dk, float *dv, float *dbeta, float *dW, float *dy0,
    vec *past
) {
    const strided k = {k_used, s->B * s->H * s->K, s->H * s->K, s->K};
    const strided beta = {beta_used, s->B * s->H, s->H, 1};
#pragma omp parallel num_threads(s->threads) if (s->threads > 1)
    {
        recurrent R_T;
        int64_t loaded = -1; /* the head whose slow weights these are */
#pragma omp for
        for (int64_t head = 0; head < s->B * s->H; head++) {
            const int64_t h = head / s->B, b = head % s->B, first = flat(s, 0, b, h);
            matrix G, G_T;
            row g_row, q_row, k_row, error_row, dy_row, dg_row, dq_row, dk_row, dv_row, late_v, late_k;
            if (loaded != h) {
                loaded = h;
                load_recurrent(&R_T, Rq, Rk, Rv, rb, h, s);
                transpose_in_place(R_T.q);
                transpose_in_place(R_T.k);
                transpose_in_place(R_T.v);
            }
            clear(G), clear(G_T), zero(dg_row), zero(late_v), zero(late_k);
            if (dW_last) {
                load_matrix(G, dW_last + first * s->V * s->K, s->V, s->K);
                transpose(G_T, G);
            }
            vec *W_before = past + omp_get_thread_num() * s->T * LANES * N * N;
            replay(W_before, s, k, beta, W, error, b, h);
            for (int64_t t = s->T - 1; t >= 0; t--) {
                const int64_t at = flat(s, t, b, h);
                const float strength = beta_used[at];
                zero(dy_row);
                if (dy) load(dy_row, dy + at * s->V, s->V);
                EACH(i) dy_row[i] += dg_row[i];
                load(g_row, g + at * s->V, s->V);
                load(q_row, q_used + at * s->K, s->K);
                load(k_row, k_used + at * s->K, s->K);
                load(error_row, error + at * s->V, s->V);
                const float dstrength = delta_step_backward(
                    dq_row, dk_row, dv_row, G, G_T, late_v, late_k, W_before + t * LANES * N * N, q_row, k_row, strength, error_row,
                    dy_row, s
                );
                softmax_backward(dq_row, q_row);
                softmax_backward(dk_row, k_row);
                dbeta[at] = dstrength * strength * (1.0f - strength);
                store(dq + at * s->K, dq_row, s->K);
                store(dk + at * s->K, dk_row, s->K);
                store(dv + at * s->V, dv_row, s->V);
                contract(dg_row, dq_row, R_T.q, s->K, false);
                contract(dg_row, dk_row, R_T.k, s->K, true);
                contract(dg_row, dv_row, R_T.v, s->V, true);
                EACH(i) dg_row[i] = (dg_row[i] + dbeta[at] * R_T.beta[i]) * (1.0f - g_row[i] * g_row[i]);
                if (fresh(s, t, b)) clear(G), clear(G_T), zero(dg_row), zero(late_v), zero(late_k);
            }
            write(G, late_v, late_k, s->V);
            store_matrix(dW + first * s->V * s->K, G, s->V, s->K);
            store(dy0 + first * s->V, dg_row, s->V);
        }
    }
}

