/* Fast weights that decay, and those whose writes have momentum, forward and backward: as in rules.c, one head of one
 * batch row at a time. README.md has the algorithm. */

#include "rows.h"

gated_rule gated_forward;
momentum_rule momentum_forward;

/* The numbers by which the rows of W decay: one for each, or the same for all where writes erase. */
INLINE void load_decay(vec *to, strided decay, bool same, int64_t t, int64_t b, int64_t h, const span *s) {
    if (same) EACH(i) to[i] = (vec){0} + *of(decay, t, b, h);
    else load(to, of(decay, t, b, h), s->V);
}

/* What the step writes: the error times beta, or v where there is no beta. */
INLINE void load_write(
    vec *u, strided v, strided beta, const float *error, int64_t t, int64_t b, int64_t h, const span *s
) {
    if (beta.at) {
        const float strength = *of(beta, t, b, h);
        load(u, error + flat(s, t, b, h) * s->V, s->V);
        EACH(i) u[i] *= strength;
    } else {
        load(u, of(v, t, b, h), s->V);
    }
}

/* W decays, then learns as in delta_forward. Without beta decay is [T, B, H, V], else [T, B, H]. */
void gated_forward(
    const span *s, strided q, strided k, strided v, strided beta, strided decay, const float *W, float *y,
    float *W_last, float *error
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
            row q_row, k_row, v_row, y_row, error_row, rate, u;
            if (fresh(s, t, b) && !alone) clear(now);
            load(q_row, of(q, t, b, h), s->K);
            load(k_row, of(k, t, b, h), s->K);
            load(v_row, of(v, t, b, h), s->V);
            load_decay(rate, decay, beta.at, t, b, h, s);
            if (alone) {
                const float *strength = beta.at ? of(beta, t, b, h) : NULL;
                only_step(y_row, error_row, from, to, fresh(s, t, b), q_row, k_row, v_row, strength, rate, s);
            } else if (beta.at) {
                const float strength = *of(beta, t, b, h);
                contract(error_row, k_row, now, s->K, false);
                EACH(i) error_row[i] = v_row[i] - rate[i] * error_row[i];
                EACH(i) u[i] = strength * error_row[i];
                decay_write_and_contract(y_row, q_row, now, rate, false, NULL, NULL, k_row, u, false, s->K);
            } else {
                decay_write_and_contract(y_row, q_row, now, rate, false, NULL, NULL, k_row, v_row, false, s->K);
            }
            if (error) store(error + at * s->V, error_row, s->V);
            store(y + at * s->V, y_row, s->V);
        }
        if (!alone) store_transposed(to, now, s);
    }
}

/* The product of each row of G with that of W. */
INLINE void dot_rows(vec *sum, const vec *G, const vec *W, int64_t rows) {
    EACH(block) {
        vec products[LANES];
        for (int64_t j = 0; j < LANES; j++) {
            const int64_t at = block * LANES + j;
            products[j] = (vec){0};
            if (at < rows) EACH(i) products[j] += G[at * N + i] * W[at * N + i];
        }
        sum[block] = sums(products);
    }
}

INLINE float sum_row(const vec *x) {
    vec all = x[0];
    for (int i = 1; i < N; i++) all += x[i];
    return sum_lanes(all);
}

/* Below this, a decay is not divided by. */
#define SMALL 0.25f

INLINE bool any_small(const vec *rates, int64_t size) {
    bool small = false;
    for (int64_t j = 0; j < size; j++) small |= entries(rates)[j] < SMALL;
    return small;
}

/* The gradient of a decay λ is the product of λ W before the step with its gradient, over λ; and that product x is, from
 * the last step to the first, x = x + dy·y - dv·v: README.md says why. `decay_dots` are the shares of each row of W, whose
 * sum x is; where nothing is erased each is the product of its row. Where λ is too small to divide by, the gradient of W is
 * stored until the second walk has W.
 *
 * The gradients of y and of the last W may be NULL, meaning zeros; `past` has room for T matrices a thread. */
void gated_backward(
    const span *s, strided q, strided k, strided v, strided beta, strided decay, const float *W, const float *error,
    const float *y, const float *W_last, const float *dy, const float *dW_last, float *dq, float *dk, float *dv,
    float *dbeta, float *ddecay, float *dW, vec *past
) {
    const int64_t size = LANES * N * N;
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const int64_t h = head / s->B, b = head % s->B, first = flat(s, 0, b, h);
        vec *saved = past + omp_get_thread_num() * s->T * size;
        matrix G, G_T, now;
        /* decays and writes of the step after this one, which G gets together with this one's */
        row late_decay, late_v, late_k, q_row, k_row, v_row, u, rate, dy_row, dq_row, dk_row, dv_row, decay_dots;
        zero(dy_row), zero(late_v), zero(late_k), zero(decay_dots);
        EACH(i) late_decay[i] = (vec){0} + 1.0f;
        if (dW_last) {
            load_matrix(G, dW_last + first * s->V * s->K, s->V, s->K);
            load_matrix(now, W_last + first * s->V * s->K, s->V, s->K);
            dot_rows(decay_dots, G, now, s->V);
            transpose(G_T, G);
        } else {
            clear(G), clear(G_T);
        }
        for (int64_t t = s->T - 1; t >= 0; t--) {
            const int64_t at = flat(s, t, b, h);
            load(q_row, of(q, t, b, h), s->K);
            load(k_row, of(k, t, b, h), s->K);
            load(v_row, of(v, t, b, h), s->V);
            load_write(u, v, beta, error, t, b, h, s);
            load_decay(rate, decay, beta.at, t, b, h, s);
            if (dy) {
                row y_row;
                load(dy_row, dy + at * s->V, s->V);
                load(y_row, y + at * s->V, s->V);
                EACH(i) decay_dots[i] += dy_row[i] * y_row[i];
            }
            if (beta.at) { /* one decay for all rows, and so for all lanes */
                decay_write_and_contract(dk_row, u, G, late_decay, false, late_v, late_k, dy_row, q_row, true, s->V);
                decay_write_and_contract(dv_row, k_row, G_T, late_decay, false, late_k, late_v, q_row, dy_row, true, s->K);
            } else {
                decay_write_and_contract(dk_row, u, G, late_decay, true, NULL, NULL, dy_row, q_row, false, s->V);
                decay_write_and_contract(dv_row, k_row, G_T, late_decay, false, NULL, NULL, q_row, dy_row, false, s->K);
            }
            if (beta.at) {
                row error_row;
                const float strength = *of(beta, t, b, h);
                load(error_row, error + at * s->V, s->V);
                dbeta[at] = dot(dv_row, error_row);
                EACH(i) dv_row[i] *= strength, late_v[i] = -dv_row[i], decay_dots[i] -= dv_row[i] * v_row[i];
                ddecay[at] = sum_row(decay_dots) / entries(rate)[0];
            } else {
                row drate;
                EACH(i) decay_dots[i] -= dv_row[i] * v_row[i], drate[i] = decay_dots[i] / rate[i];
                store(ddecay + at * s->V, drate, s->V);
            }
            if (any_small(rate, beta.at ? 1 : s->V)) {
                vec *to = saved + t * size;
                for (int64_t j = 0; j < LANES * N; j++) EACH(i) {
                    to[j * N + i] = G[j * N + i];
                    if (beta.at) to[j * N + i] += entries(late_v)[j] * k_row[i];
                }
            }
            store(dk + at * s->K, dk_row, s->K);
            store(dv + at * s->V, dv_row, s->V);
            EACH(i) late_decay[i] = rate[i], late_v[i] *= rate[i], late_k[i] = k_row[i];
            if (fresh(s, t, b)) {
                clear(G), clear(G_T), zero(late_v), zero(late_k), zero(decay_dots);
                EACH(i) late_decay[i] = (vec){0} + 1.0f;
                memset(ddecay + (beta.at ? at : at * s->V), 0, (beta.at ? 1 : s->V) * sizeof(float));
            }
        }
        for (int64_t j = 0; j < s->V; j++)
            EACH(i) G[j * N + i] = entries(late_decay)[j] * G[j * N + i] + entries(late_v)[j] * late_k[i];
        store_matrix(dW + first * s->V * s->K, G, s->V, s->K);

        load_matrix(now, W + first * s->V * s->K, s->V, s->K);
        for (int64_t t = 0; t < s->T; t++) {
            const int64_t at = flat(s, t, b, h);
            if (fresh(s, t, b)) clear(now);
            load(k_row, of(k, t, b, h), s->K);
            load_write(u, v, beta, error, t, b, h, s);
            load_decay(rate, decay, beta.at, t, b, h, s);
            if (any_small(rate, beta.at ? 1 : s->V)) {
                dot_rows(decay_dots, saved + t * size, now, s->V);
                if (beta.at) ddecay[at] = sum_row(decay_dots);
                else store(ddecay + at * s->V, decay_dots, s->V);
            }
            if (beta.at) {
                load(dk_row, dk + at * s->K, s->K);
                load(dv_row, dv + at * s->V, s->V);
                EACH(i) dv_row[i] *= -rate[i];
                contract(dk_row, dv_row, now, s->V, true);
                store(dk + at * s->K, dk_row, s->K);
            }
            if (dy) load(dy_row, dy + at * s->V, s->V);
            if (beta.at) decay_write_and_contract(dq_row, dy_row, now, rate, false, NULL, NULL, u, k_row, false, s->V);
            else decay_write_and_contract(dq_row, dy_row, now, rate, true, NULL, NULL, u, k_row, false, s->V);
            store(dq + at * s->K, dq_row, s->K);
        }
    }
}

/* ---- momentum ---- */

INLINE vec scaled(vec x, float by, bool scales) {
    if (scales) x *= by;
    return x;
}

/* C_i = momentum C_i + x_i a, M_i = decay M_i + momentum C_i + x_i c with the C before, and y = sum of s_i M_i. Decay is 1
 * unless it `decays`. */
INLINE void write_with_momentum(
    vec *y, const vec *scales, vec *M, vec *C, float decay, bool decays, float momentum, const vec *x, const vec *a,
    const vec *c, int64_t rows
) {
    const float *s = entries(scales), *f = entries(x);
    row sum[2];
    BOTH(n) zero(sum[n]);
    for (PAIRS(rows)) BOTH(n) EACH(i) {
        const int64_t at = (j + n) * N + i;
        const vec carried = momentum * C[at], before = scaled(M[at], decay, decays);
        C[at] = carried + f[j + n] * a[i];
        sum[n][i] += s[j + n] * (M[at] = before + f[j + n] * c[i] + carried);
    }
    EACH(i) y[i] = sum[0][i] + sum[1][i];
}

/* W decays and its part along k is erased; what is written is C, a running sum. `found` is decay W k, for backward, or
 * NULL. */
void momentum_forward(
    const span *s, strided q, strided k, strided v, strided beta, strided decay, strided momentum, const float *W,
    const float *C, float *y, float *W_last, float *C_last, float *found
) {
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const int64_t h = head / s->B, b = head % s->B, first = flat(s, 0, b, h);
        matrix now, sum;
        load_transposed(now, W + first * s->V * s->K, s);
        load_transposed(sum, C + first * s->V * s->K, s);
        for (int64_t t = 0; t < s->T; t++) {
            const int64_t at = flat(s, t, b, h);
            const float strength = *of(beta, t, b, h), rate = *of(decay, t, b, h), eta = *of(momentum, t, b, h);
            row q_row, k_row, v_row, y_row, found_row, change;
            if (fresh(s, t, b)) clear(now), clear(sum);
            load(q_row, of(q, t, b, h), s->K);
            load(k_row, of(k, t, b, h), s->K);
            load(v_row, of(v, t, b, h), s->V);
            contract(found_row, k_row, now, s->K, false);
            EACH(i) found_row[i] *= rate, v_row[i] *= strength, change[i] = v_row[i] - strength * found_row[i];
            if (rate == 1.0f) write_with_momentum(y_row, q_row, now, sum, rate, false, eta, k_row, v_row, change, s->K);
            else write_with_momentum(y_row, q_row, now, sum, rate, true, eta, k_row, v_row, change, s->K);
            if (found) store(found + at * s->V, found_row, s->V);
            store(y + at * s->V, y_row, s->V);
        }
        store_transposed(W_last + first * s->V * s->K, now, s);
        store_transposed(C_last + first * s->V * s->K, sum, s);
    }
}

/* C before every step, T matrices, by repeating the writes. */
INLINE void replay_sums(
    vec *past, const span *s, strided k, strided v, strided beta, strided momentum, const float *C, int64_t b, int64_t h
) {
    const int64_t size = LANES * N * N;
    row k_row, u;
    load_matrix(past, C + flat(s, 0, b, h) * s->V * s->K, s->V, s->K);
    for (int64_t t = 0; t < s->T; t++) {
        vec *now = past + t * size;
        if (fresh(s, t, b)) clear(now);
        if (t == s->T - 1) break;
        const float strength = *of(beta, t, b, h), eta = *of(momentum, t, b, h);
        load(k_row, of(k, t, b, h), s->K);
        load(u, of(v, t, b, h), s->V);
        EACH(i) u[i] *= strength;
        for (int64_t j = 0; j < LANES * N; j++) /* u is zero past V */
            EACH(i) now[size + j * N + i] = eta * now[j * N + i] + entries(u)[j] * k_row[i];
    }
}

/* One step back, P and Q being the gradients of W and C: P = decay P + late_v late_kᵀ + dy qᵀ, then Q = momentum Q + P,
 * dk = Qᵀ written - Pᵀ erased, and P k and Q k; returns the product of Q with C, that before the step. Decay is 1 unless
 * it `decays`. */
INLINE float pass_both_back(
    vec *dk, vec *P_k, vec *Q_k, vec *P, vec *Q, float decay, bool decays, float momentum, const vec *late_v,
    const vec *late_k, const vec *dy, const vec *q, const vec *k, const vec *erased, const vec *written, const vec *C,
    const span *s
) {
    const float *e = entries(erased), *w = entries(written), *v = entries(late_v), *d = entries(dy);
    row to_k[2], C_dots[2];
    BOTH(n) zero(to_k[n]), zero(C_dots[n]);
    EACH(block) {
        vec P_with_k[LANES / 2], Q_with_k[LANES / 2]; /* of two rows, to be summed */
        for (int64_t j = 0; j < LANES / 2; j++) {
            vec with_k[2][2] = {0};
            if (block * LANES + j < s->V) BOTH(n) EACH(i) {
                const int64_t at = block * LANES + j + n * (LANES / 2);
                const vec after = scaled(P[at * N + i], decay, decays);
                const vec p = after + v[at] * late_k[i] + d[at] * q[i], sum = momentum * Q[at * N + i] + p;
                P[at * N + i] = p, Q[at * N + i] = sum;
                with_k[0][n] += p * k[i], with_k[1][n] += sum * k[i];
                to_k[n][i] += w[at] * sum - e[at] * p;
                C_dots[n][i] += sum * C[at * N + i];
            }
            P_with_k[j] = folded(with_k[0][0], with_k[0][1]), Q_with_k[j] = folded(with_k[1][0], with_k[1][1]);
        }
        P_k[block] = sums_of_folded(P_with_k, LANES / 2), Q_k[block] = sums_of_folded(Q_with_k, LANES / 2);
    }
    EACH(i) dk[i] = to_k[0][i] + to_k[1][i], C_dots[0][i] += C_dots[1][i];
    return sum_row(C_dots[0]);
}

/* M_i = decay M_i + x_i a + momentum C_i, and y = sum of s_i M_i. Decay is 1 unless it `decays`. */
INLINE void add_and_contract(
    vec *y, const vec *scales, vec *M, float decay, bool decays, const vec *x, const vec *a, float momentum, const vec *C,
    int64_t rows
) {
    const float *s = entries(scales), *f = entries(x);
    row sum[2];
    BOTH(n) zero(sum[n]);
    for (PAIRS(rows)) BOTH(n) EACH(i) {
        const int64_t at = (j + n) * N + i;
        const vec before = scaled(M[at], decay, decays);
        sum[n][i] += s[j + n] * (M[at] = before + f[j + n] * a[i] + momentum * C[at]);
    }
    EACH(i) y[i] = sum[0][i] + sum[1][i];
}

/* As gated_backward: of the decay λ and the momentum η together, λ dλ + η dη (`rate_dots`) follows from the steps after,
 * and dη is Q's product with C. The gradients of y and of the last W and C may be NULL, meaning zeros; `past` has room for
 * 2 T matrices and T rows a thread. */
void momentum_backward(
    const span *s, strided q, strided k, strided v, strided beta, strided decay, strided momentum, const float *W,
    const float *C, const float *found, const float *y, const float *W_last, const float *C_last, const float *dy,
    const float *dW_last, const float *dC_last, float *dq, float *dk, float *dv, float *dbeta, float *ddecay,
    float *dmomentum, float *dW, float *dC, vec *past
) {
    const int64_t size = LANES * N * N, room = 2 * s->T + s->T / 16 + 1; /* as rules.py allocates */
    const bool reads = dy || dW_last; /* or C alone has a gradient */
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const int64_t h = head / s->B, b = head % s->B, first = flat(s, 0, b, h);
        vec *sums_before = past + omp_get_thread_num() * room * size, *kept_P = sums_before + s->T * size,
            *dfound = kept_P + s->T * size;
        matrix P, Q, now;
        row q_row, k_row, v_row, found_row, written, erased, dy_row, dq_row, dk_row, dv_row, late_v, late_k, rate_dots;
        float late_decay = 1.0f, late_momentum = 1.0f;
        zero(dy_row), zero(late_v), zero(late_k), zero(rate_dots), clear(P), clear(Q);
        if (dW_last) {
            load_matrix(P, dW_last + first * s->V * s->K, s->V, s->K);
            load_matrix(now, W_last + first * s->V * s->K, s->V, s->K);
            dot_rows(rate_dots, P, now, s->V);
        }
        if (dC_last) {
            row more;
            load_matrix(Q, dC_last + first * s->V * s->K, s->V, s->K);
            load_matrix(now, C_last + first * s->V * s->K, s->V, s->K);
            dot_rows(more, Q, now, s->V);
            EACH(i) rate_dots[i] += more[i];
        }
        replay_sums(sums_before, s, k, v, beta, momentum, C, b, h);
        for (int64_t t = s->T - 1; t >= 0; t--) {
            const int64_t at = flat(s, t, b, h);
            const float strength = *of(beta, t, b, h), rate = *of(decay, t, b, h), eta = *of(momentum, t, b, h);
            vec *dfound_row = dfound + t * N;
            load(q_row, of(q, t, b, h), s->K);
            load(k_row, of(k, t, b, h), s->K);
            load(v_row, of(v, t, b, h), s->V);
            load(found_row, found + at * s->V, s->V);
            if (dy) {
                row y_row;
                load(dy_row, dy + at * s->V, s->V);
                load(y_row, y + at * s->V, s->V);
                EACH(i) rate_dots[i] += dy_row[i] * y_row[i];
            }
            EACH(i) written[i] = strength * v_row[i], erased[i] = strength * found_row[i];
#define PASS(decays) \
    pass_both_back( \
        dk_row, dfound_row, dv_row, P, Q, late_decay, decays, late_momentum, late_v, late_k, dy_row, q_row, k_row, erased, \
        written, sums_before + t * size, s \
    )
            dmomentum[at] = late_decay == 1.0f ? PASS(false) : PASS(true);
            dbeta[at] = dot(dv_row, v_row) - dot(dfound_row, found_row);
            EACH(i) dv_row[i] *= strength, dfound_row[i] *= -strength, rate_dots[i] -= dv_row[i] * v_row[i];
            ddecay[at] = reads ? (sum_row(rate_dots) - eta * dmomentum[at]) / rate : 0.0f;
            if (rate < SMALL)
                for (int64_t j = 0; j < LANES * N; j++)
                    EACH(i) kept_P[t * size + j * N + i] = P[j * N + i] + entries(dfound_row)[j] * k_row[i];
            store(dk + at * s->K, dk_row, s->K);
            store(dv + at * s->V, dv_row, s->V);
            late_decay = rate, late_momentum = eta;
            EACH(i) late_v[i] = rate * dfound_row[i], late_k[i] = k_row[i];
            if (fresh(s, t, b)) {
                clear(P), clear(Q), zero(late_v), zero(late_k), zero(rate_dots);
                late_decay = late_momentum = 1.0f;
                ddecay[at] = 0.0f;
            }
        }
        for (int64_t j = 0; j < s->V; j++)
            EACH(i) {
                P[j * N + i] = late_decay * P[j * N + i] + entries(late_v)[j] * late_k[i];
                Q[j * N + i] *= late_momentum;
            }
        store_matrix(dW + first * s->V * s->K, P, s->V, s->K);
        store_matrix(dC + first * s->V * s->K, Q, s->V, s->K);

        load_matrix(now, W + first * s->V * s->K, s->V, s->K);
        for (int64_t t = 0; t < s->T; t++) {
            const int64_t at = flat(s, t, b, h);
            const float strength = *of(beta, t, b, h), rate = *of(decay, t, b, h), eta = *of(momentum, t, b, h);
            const vec *dfound_row = dfound + t * N, *sum = sums_before + t * size;
            row change;
            if (fresh(s, t, b)) clear(now);
            load(k_row, of(k, t, b, h), s->K);
            load(v_row, of(v, t, b, h), s->V);
            load(found_row, found + at * s->V, s->V);
            if (rate < SMALL) {
                dot_rows(rate_dots, kept_P + t * size, now, s->V);
                ddecay[at] = sum_row(rate_dots);
            }
            load(dk_row, dk + at * s->K, s->K);
            EACH(i) late_v[i] = rate * dfound_row[i], change[i] = strength * (v_row[i] - found_row[i]);
            contract(dk_row, late_v, now, s->V, true);
            store(dk + at * s->K, dk_row, s->K);
            if (dy) load(dy_row, dy + at * s->V, s->V);
            if (rate == 1.0f) add_and_contract(dq_row, dy_row, now, rate, false, change, k_row, eta, sum, s->V);
            else add_and_contract(dq_row, dy_row, now, rate, true, change, k_row, eta, sum, s->V);
            store(dq + at * s->K, dq_row, s->K);
        }
    }
}
