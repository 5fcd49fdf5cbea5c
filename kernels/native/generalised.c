/* The generalised delta rule, forward and backward, as in rules.c one head of one batch row at a time: each step of an
 * episode writes s->writes times, each time W = W diag(a), then W = W + (u - W e) kᵀ, and reads once. README.md has the
 * algorithm.
 *
 * k, u, e and decay are [T, B, H, writes, size], the last two dimensions dense. */

#include "rows.h"

generalised_rule generalised_forward;

INLINE const float *of_write(strided x, int64_t t, int64_t b, int64_t h, int64_t i, int64_t size) {
    return of(x, t, b, h) + i * size;
}

/* offset of write i of [t, b, h] in a dense [T, B, H, writes] */
INLINE int64_t flat_write(const span *s, int64_t t, int64_t b, int64_t h, int64_t i) {
    return flat(s, t, b, h) * s->writes + i;
}

/* a dense [T, B, H, writes, size] */
INLINE strided dense_writes(const float *x, int64_t size, const span *s) {
    const int64_t row = s->writes * size;
    return (strided){x, s->B * s->H * row, s->H * row, row};
}

/* Fetch the writes of step t, if there is one, while another is computed: they lie too far apart for a processor to look
 * ahead by itself. */
INLINE void fetch_writes(strided x, int64_t t, int64_t b, int64_t h, int64_t size, const span *s) {
    if (t < 0 || t >= s->T) return;
    for (int64_t i = 0; i < s->writes * size; i += 16) __builtin_prefetch(of(x, t, b, h) + i);
}

/* M_i = a_i M_i + x_i r */
INLINE void decay_and_write(vec *M, const vec *a, const vec *x, const vec *r, int64_t rows) {
    for (int64_t j = 0; j < rows; j++) EACH(i) M[j * N + i] = entries(a)[j] * M[j * N + i] + entries(x)[j] * r[i];
}

/* The only step of an unroll, from W to W_last as they lie: rows of W never meet, so that LANES of them pass through all
 * writes together. */
INLINE void only_generalised_step(
    float *y, float *error, const float *W, float *W_last, strided q, strided k, strided u, strided e, strided decay, int64_t b,
    int64_t h, const span *s
) {
    row q_row;
    load(q_row, of(q, 0, b, h), s->K);
    for (int64_t from = 0; from < s->V; from += LANES) {
        const int64_t rows = s->V - from < LANES ? s->V - from : LANES;
        vec now[LANES * N], products[LANES];
        memset(now, 0, sizeof now);
        if (!fresh(s, 0, b)) for (int64_t j = 0; j < rows; j++) load(now + j * N, W + (from + j) * s->K, s->K);
        for (int64_t w = 0; w < s->writes; w++) {
            row k_row, e_row, a_row;
            load(k_row, of_write(k, 0, b, h, w, s->K), s->K);
            load(e_row, of_write(e, 0, b, h, w, s->K), s->K);
            load(a_row, of_write(decay, 0, b, h, w, s->K), s->K);
            for (int64_t j = 0; j < LANES; j++) {
                products[j] = (vec){0};
                EACH(i) now[j * N + i] *= a_row[i], products[j] += now[j * N + i] * e_row[i];
            }
            vec found = sums(products), wanted = {0};
            memcpy(&wanted, of_write(u, 0, b, h, w, s->V) + from, rows * sizeof(float));
            const vec difference = wanted - found;
            if (error) memcpy(error + w * s->V + from, &difference, rows * sizeof(float));
            for (int64_t j = 0; j < rows; j++) EACH(i) now[j * N + i] += ((const float *)&difference)[j] * k_row[i];
        }
        for (int64_t j = 0; j < LANES; j++) {
            products[j] = (vec){0};
            EACH(i) products[j] += now[j * N + i] * q_row[i];
        }
        const vec found = sums(products);
        memcpy(y + from, &found, rows * sizeof(float));
        for (int64_t j = 0; j < rows; j++) store(W_last + (from + j) * s->K, now + j * N, s->K);
    }
}

/* error, u - W e of each write, may be NULL: then it is not stored. */
void generalised_forward(
    const span *s, strided q, strided k, strided u, strided e, strided decay, const float *W, float *y, float *W_last,
    float *error
) {
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const int64_t b = head / s->H, h = head % s->H, first = flat(s, 0, b, h);
        const float *from = W + first * s->V * s->K;
        float *to = W_last + first * s->V * s->K;
        if (s->T == 1) {
            float *error_to = error ? error + first * s->writes * s->V : NULL;
            only_generalised_step(y + first * s->V, error_to, from, to, q, k, u, e, decay, b, h, s);
            continue;
        }
        matrix now;
        row q_row, k_row, e_row, a_row, y_row, error_row, found;
        load_transposed(now, from, s);
        for (int64_t t = 0; t < s->T; t++) {
            if (fresh(s, t, b)) clear(now);
            fetch_writes(k, t + 1, b, h, s->K, s), fetch_writes(e, t + 1, b, h, s->K, s);
            fetch_writes(decay, t + 1, b, h, s->K, s), fetch_writes(u, t + 1, b, h, s->V, s);
            load(q_row, of(q, t, b, h), s->K);
            for (int64_t w = 0; w < s->writes; w++) {
                load(k_row, of_write(k, t, b, h, w, s->K), s->K);
                load(e_row, of_write(e, t, b, h, w, s->K), s->K);
                load(a_row, of_write(decay, t, b, h, w, s->K), s->K);
                load(error_row, of_write(u, t, b, h, w, s->V), s->V);
                EACH(i) e_row[i] *= a_row[i];
                contract(found, e_row, now, s->K, false);
                EACH(i) error_row[i] -= found[i];
                if (error) store(error + flat_write(s, t, b, h, w) * s->V, error_row, s->V);
                if (w < s->writes - 1) decay_and_write(now, a_row, k_row, error_row, s->K);
                else decay_write_and_contract(y_row, q_row, now, a_row, true, NULL, NULL, k_row, error_row, false, s->K);
            }
            store(y + flat(s, t, b, h) * s->V, y_row, s->V);
        }
        store_transposed(to, now, s);
    }
}

/* W before every write, by repeating them. */
INLINE void replay_writes(
    vec *past, const span *s, strided k, strided decay, const float *W, const float *error, int64_t b, int64_t h
) {
    const int64_t size = LANES * N * N, count = s->T * s->writes;
    row k_row, a_row, error_row;
    load_matrix(past, W + flat(s, 0, b, h) * s->V * s->K, s->V, s->K);
    for (int64_t write = 0; write < count; write++) {
        const int64_t t = write / s->writes, w = write % s->writes;
        vec *now = past + write * size;
        if (w == 0 && fresh(s, t, b)) clear(now);
        if (w == 0) {
            fetch_writes(k, t + 1, b, h, s->K, s), fetch_writes(decay, t + 1, b, h, s->K, s);
            fetch_writes(dense_writes(error, s->V, s), t + 1, b, h, s->V, s);
        }
        if (write == count - 1) break;
        load(k_row, of_write(k, t, b, h, w, s->K), s->K);
        load(a_row, of_write(decay, t, b, h, w, s->K), s->K);
        load(error_row, error + flat_write(s, t, b, h, w) * s->V, s->V);
        for (int64_t j = 0; j < LANES * N; j++) /* the error is zero past V */
            EACH(i) now[size + j * N + i] = a_row[i] * now[j * N + i] + entries(error_row)[j] * k_row[i];
    }
}

/* One write back over G, with W that before the write: D = G - s eᵀ, G = D diag(a), and sums over rows i:
 * with_G = Σ D_i ⊙ W_i, with_s = Σ s_i W_i, with_dy = Σ dy_i W_i. */
INLINE void pass_write_back(
    vec *with_G, vec *with_s, vec *with_dy, vec *G, const vec *W, const vec *s, const vec *dy, const vec *e, const vec *a,
    int64_t rows
) {
    zero(with_G), zero(with_s), zero(with_dy);
    for (int64_t j = 0; j < rows; j++) EACH(i) {
        const vec now = W[j * N + i], dnow = G[j * N + i] - entries(s)[j] * e[i];
        with_G[i] += dnow * now;
        with_s[i] += entries(s)[j] * now;
        with_dy[i] += entries(dy)[j] * now;
        G[j * N + i] = dnow * a[i];
    }
}

/* The gradients of y and of the last W may be NULL, meaning zeros; `past` has room for a matrix a write in each thread. G
 * is the gradient of W, G_T its transpose, to which the write after this one is yet to be applied: `late_decay` times it,
 * and late_e late_sᵀ. */
void generalised_backward(
    const span *s, strided q, strided k, strided e, strided decay, const float *W, const float *error, const float *dy,
    const float *dW_last, float *dq, float *dk, float *du, float *de, float *ddecay, float *dW, vec *past
) {
    const int64_t size = LANES * N * N;
    const strided filled[] = {dense_writes(dk, s->K, s), dense_writes(de, s->K, s), dense_writes(ddecay, s->K, s)};
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const int64_t b = head / s->H, h = head % s->H, first = flat(s, 0, b, h);
        matrix G, G_T;
        row q_row, k_row, e_row, a_row, error_row, dy_row, dk_row, du_row, with_G, with_s, with_dy, late_decay, late_e, late_s;
        clear(G), clear(G_T), zero(dy_row), zero(q_row), zero(late_e), zero(late_s);
        EACH(i) late_decay[i] = (vec){0} + 1.0f;
        if (dW_last) {
            load_matrix(G, dW_last + first * s->V * s->K, s->V, s->K);
            transpose(G_T, G);
        }
        vec *before = past + omp_get_thread_num() * s->T * s->writes * size;
        replay_writes(before, s, k, decay, W, error, b, h);
        for (int64_t t = s->T - 1; t >= 0; t--) {
            const int64_t at = flat(s, t, b, h);
            fetch_writes(e, t - 1, b, h, s->K, s), fetch_writes(dense_writes(du, s->V, s), t - 1, b, h, s->V, s);
            for (int i = 0; i < 3; i++) fetch_writes(filled[i], t - 1, b, h, s->K, s);
            for (int64_t w = s->writes - 1; w >= 0; w--) {
                const int64_t write = flat_write(s, t, b, h, w);
                const bool last = w == s->writes - 1; /* after which y was read */
                load(k_row, of_write(k, t, b, h, w, s->K), s->K);
                load(e_row, of_write(e, t, b, h, w, s->K), s->K);
                load(a_row, of_write(decay, t, b, h, w, s->K), s->K);
                load(error_row, error + write * s->V, s->V);
                zero(dy_row), zero(q_row);
                if (last && dy) load(dy_row, dy + at * s->V, s->V);
                if (last) load(q_row, of(q, t, b, h), s->K);
                if (last) write_and_contract(dk_row, error_row, G, dy_row, q_row, s->V);
                else contract(dk_row, error_row, G, s->V, false);
                decay_write_and_contract(du_row, k_row, G_T, late_decay, true, late_e, late_s, q_row, dy_row, true, s->K);
                pass_write_back(with_G, with_s, with_dy, G, before + (t * s->writes + w) * size, du_row, dy_row, e_row, a_row, s->V);
                store(dk + write * s->K, dk_row, s->K);
                store(du + write * s->V, du_row, s->V);
                store(ddecay + write * s->K, with_G, s->K);
                EACH(i) late_decay[i] = a_row[i], late_e[i] = -a_row[i] * e_row[i], late_s[i] = du_row[i];
                EACH(i) with_s[i] *= -a_row[i];
                store(de + write * s->K, with_s, s->K);
                if (last) {
                    const float match = dot(error_row, dy_row);
                    EACH(i) with_dy[i] = a_row[i] * with_dy[i] + match * k_row[i];
                    store(dq + at * s->K, with_dy, s->K);
                }
            }
            if (fresh(s, t, b)) {
                clear(G), clear(G_T), zero(late_e), zero(late_s);
                EACH(i) late_decay[i] = (vec){0} + 1.0f;
            }
        }
        store_matrix(dW + first * s->V * s->K, G, s->V, s->K);
    }
}
