/* How the rules of rules.c, gated.c and attention.c take their heads, and the types of those that dense.c is handed: each
 * head size has a library of its own, and attention has one for all.
 *
 * q, k, v and the like are [T, B, H, size] with strides in numbers, the last dimension dense; all else is dense.
 * Heads are shared among threads, in the order of h: those with the same slow weights follow each other. */

#include <stdbool.h>
#include <stdint.h>

typedef struct {
    const float *at;
    int64_t t, b, h;
} strided;

typedef struct {
    int64_t T, B, H, V, K, threads;
    const bool *reset;
    int64_t writes; /* of each step, where a rule has several */
} span;

typedef struct {
    span s;
    /* M: slots; G: queries per key; first, second: kernels of write and read; skip: whether to skip empty slots */
    int64_t M, G, first, second, skip;
} window;

typedef void delta_rule(
    const span *, strided q, strided k, strided v, strided beta, const float *W, float *y, float *W_last, float *error
);
typedef void gated_rule(
    const span *, strided q, strided k, strided v, strided beta, strided decay, const float *W, float *y, float *W_last,
    float *error
);
typedef void generalised_rule(
    const span *, strided q, strided k, strided u, strided e, strided decay, const float *W, float *y, float *W_last,
    float *error
);
typedef void momentum_rule(
    const span *, strided q, strided k, strided v, strided beta, strided decay, strided momentum, const float *W,
    const float *C, float *y, float *W_last, float *C_last, float *found
);
typedef void delta_rnn_rule(
    const span *, strided z, strided k, strided v, strided beta, const float *R, const float *y0, float *y,
    float *R_last, float *error, float *p
);
typedef void recurrent_delta_rule(
    const span *, strided q, strided k, strided v, strided beta, const float *Rq, const float *Rk, const float *Rv,
    const float *rb, const float *W, const float *y0, float *y, float *W_last, float *g, float *q_used, float *k_used,
    float *beta_used, float *error
);
typedef void attention_rule(
    const window *, strided q, strided k, strided v, strided decay, strided bias, const float *keys, const float *values,
    const float *live, float *y, float *keys_last, float *values_last, float *live_last, float *scores_largest, float *total,
    float *scratch
);
typedef int64_t attention_size(const window *);
