/* The Delta LSTM, forward and backward: as in rules.c, one head of one batch row at a time, with its three matrices.
 *
 * z, k, v, beta, R and what is kept of each gate have 3 H heads: i, u, o of the first head, then of the next. */

#include "delta_steps.h"

enum { READS_ITSELF, PLAIN, ADDS_INPUT, LINEAR }; /* variants A, B, C, D of the paper */
enum { I, U, O, GATES };

#define EACH_GATE(g) for (int g = 0; g < GATES; g++)

/* p, cells [T, B, H, V]: what R is read with, and c before each step; gates [T, B, 3 H, V]: i, u, o. With error
 * [T, B, 3 H, V] they are for backward, or NULL. */
void delta_lstm_forward(
    const span *s, strided z, strided k, strided v, strided beta, const float *R, const float *y0, const float *c0, float *y,
    float *R_last, float *c_last, float *error, float *p, float *cells, float *gates, int64_t variant
) {
    span by_gate = *s;
    by_gate.H = GATES * s->H;
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const int64_t h = head / s->B, b = head % s->B, first = flat(s, 0, b, h), V = s->V;
        matrix now[GATES];
        row p_row, c_row, y_row, act[GATES], input;
        EACH_GATE(g) load_transposed(now[g], R + flat(&by_gate, 0, b, GATES * h + g) * V * V, s);
        load(y_row, y0 + first * V, V);
        load(c_row, c0 + first * V, V);
        for (int64_t t = 0; t < s->T; t++) {
            const int64_t at = flat(s, t, b, h);
            if (fresh(s, t, b)) {
                EACH_GATE(g) clear(now[g]);
                zero(y_row), zero(c_row);
            }
            EACH(n) p_row[n] = y_row[n];
            if (variant != READS_ITSELF) softmax(p_row, V);
            if (p) store(p + at * V, p_row, V), store(cells + at * V, c_row, V);
            EACH_GATE(g) {
                const int64_t gate = GATES * h + g;
                row k_row, v_row, z_row, error_row;
                load(k_row, of(k, t, b, gate), V);
                load(v_row, of(v, t, b, gate), V);
                load(z_row, of(z, t, b, gate), V);
                delta_step(act[g], error_row, now[g], p_row, k_row, v_row, *of(beta, t, b, gate), V);
                EACH(n) {
                    if (g == U) input[n] = z_row[n];
                    act[g][n] += z_row[n];
                    if (g != U || variant != LINEAR) act[g][n] = sigmoid_of(act[g][n]);
                }
                if (p) {
                    store(error + flat(&by_gate, t, b, gate) * V, error_row, V);
                    store(gates + flat(&by_gate, t, b, gate) * V, act[g], V);
                }
            }
            EACH(n) c_row[n] += act[I][n] * (act[U][n] - c_row[n]), y_row[n] = c_row[n] * act[O][n];
            if (variant == READS_ITSELF) softmax(y_row, V);
            if (variant == ADDS_INPUT) EACH(n) y_row[n] += input[n];
            store(y + at * V, y_row, V);
        }
        EACH_GATE(g) store_transposed(R_last + flat(&by_gate, 0, b, GATES * h + g) * V * V, now[g], s);
        store(c_last + first * V, c_row, V);
    }
}

/* The gradients of y and of the last R and c may be NULL, meaning zeros; `past` has room for 3 T matrices a thread. */
void delta_lstm_backward(
    const span *s, strided k, strided beta, const float *R, const float *y, const float *error, const float *p,
    const float *cells, const float *gates, const float *dy, const float *dR_last, const float *dc_last, float *dz, float *dk,
    float *dv, float *dbeta, float *dR, float *dy0, float *dc0, vec *past, int64_t variant
) {
    const int64_t size = LANES * N * N, V = s->V;
    span by_gate = *s;
    by_gate.H = GATES * s->H;
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const int64_t h = head / s->B, b = head % s->B, first = flat(s, 0, b, h);
        vec *before = past + omp_get_thread_num() * GATES * s->T * size;
        matrix G[GATES], G_T[GATES];
        row late_v[GATES], late_k[GATES], from_next, dc;
        EACH_GATE(g) {
            const int64_t gate = GATES * h + g, start = flat(&by_gate, 0, b, gate) * V * V;
            clear(G[g]), clear(G_T[g]), zero(late_v[g]), zero(late_k[g]);
            if (dR_last) load_matrix(G[g], dR_last + start, V, V), transpose(G_T[g], G[g]);
            replay(before + g * s->T * size, &by_gate, k, beta, R, error, b, gate);
        }
        zero(from_next), zero(dc);
        if (dc_last) load(dc, dc_last + first * V, V);
        for (int64_t t = s->T - 1; t >= 0; t--) {
            const int64_t at = flat(s, t, b, h);
            row dy_row, dh, p_row, c_row, act[GATES], dact[GATES], dp;
            zero(dy_row);
            if (dy) load(dy_row, dy + at * V, V);
            load(p_row, p + at * V, V);
            load(c_row, cells + at * V, V);
            EACH_GATE(g) load(act[g], gates + flat(&by_gate, t, b, GATES * h + g) * V, V);
            EACH(n) dy_row[n] += from_next[n], dh[n] = dy_row[n];
            if (variant == READS_ITSELF) {
                row y_row;
                load(y_row, y + at * V, V);
                softmax_backward(dh, y_row);
            }
            EACH(n) {
                const vec i = act[I][n], u = act[U][n], o = act[O][n], c = c_row[n];
                dc[n] += dh[n] * o;
                dact[I][n] = dc[n] * (u - c) * i * (1.0f - i);
                dact[U][n] = dc[n] * i;
                if (variant != LINEAR) dact[U][n] *= u * (1.0f - u);
                dact[O][n] = dh[n] * (c + i * (u - c)) * o * (1.0f - o);
                dc[n] *= 1.0f - i;
            }
            zero(dp);
            EACH_GATE(g) {
                const int64_t gate = GATES * h + g, place = flat(&by_gate, t, b, gate);
                row k_row, error_row, dq_row, dk_row, dv_row, dz_row;
                load(k_row, of(k, t, b, gate), V);
                load(error_row, error + place * V, V);
                dbeta[place] = delta_step_backward(
                    dq_row, dk_row, dv_row, G[g], G_T[g], late_v[g], late_k[g], before + (g * s->T + t) * size, p_row, k_row,
                    *of(beta, t, b, gate), error_row, dact[g], s
                );
                EACH(n) {
                    dp[n] += dq_row[n];
                    dz_row[n] = dact[g][n];
                    if (g == U && variant == ADDS_INPUT) dz_row[n] += dy_row[n];
                }
                store(dz + place * V, dz_row, V);
                store(dk + place * V, dk_row, V);
                store(dv + place * V, dv_row, V);
            }
            if (variant != READS_ITSELF) softmax_backward(dp, p_row);
            EACH(n) from_next[n] = dp[n];
            if (fresh(s, t, b)) {
                EACH_GATE(g) clear(G[g]), clear(G_T[g]), zero(late_v[g]), zero(late_k[g]);
                zero(from_next), zero(dc);
            }
        }
        EACH_GATE(g) {
            write(G[g], late_v[g], late_k[g], V);
            store_matrix(dR + flat(&by_gate, 0, b, GATES * h + g) * V * V, G[g], V, V);
        }
        store(dy0 + first * V, from_next, V);
        store(dc0 + first * V, dc, V);
    }
}
