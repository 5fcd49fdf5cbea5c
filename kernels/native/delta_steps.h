/* Steps of the delta rule, forward and backward: what the rules of rules.c and delta_lstm.c have in common. */

#include "rows.h"

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
