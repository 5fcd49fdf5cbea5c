/* The rules of fast weights on CPUs, forward and backward: one head of one batch row at a time, its fast weights
 * in the first-level cache from the first step to the last. README.md has the algorithm. */

#include "delta_steps.h"

delta_rule delta_forward;
delta_rnn_rule delta_rnn_forward;
recurrent_delta_rule recurrent_delta_forward;

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
                only_step(y_row, error_row, from, to, fresh(s, t, b), q_row, k_row, v_row, of(beta, t, b, h), NULL, s);
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
            if (alone) only_step(y_row, error_row, from, to, fresh(s, t, b), p_row, k_row, v_row, of(beta, t, b, h), NULL, s);
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
                if (alone) only_step(y_row, error_row, from, to, fresh(s, t, b), q_row, k_row, v_row, &strength, NULL, s);
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

