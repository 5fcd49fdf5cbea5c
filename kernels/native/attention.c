/* Attention within a window, and the DeltaFormer, forward and backward: one head of one batch row at a time.
 *
 * A head sees M + T columns: the M things that its state holds, oldest first, and its own T steps. Keys and values
 * are stored with columns as lanes, so heads of any size fill vectors. Step t sees columns max(t, start) to M + t,
 * where start is its episode's first; what is not to be seen is zero, and its weight is 0 whatever it holds. Backward
 * computes the weights again, walking back; a column's gradients are complete when it is hidden. */

#include <math.h>

#include "heads.h"
#include "vectors.h"

enum { EXP, SOFTMAX, LINEAR, RELU, ROUND }; /* in the order of reference.KERNELS */

attention_rule attention_forward;
attention_size attention_room;

#define ACROSS(b) for (int64_t b = first; b <= last; b++)

/* ---- columns ---- */

typedef struct {
    int64_t wide;   /* vectors of a row of numbers */
    vec *K, *V;     /* keys and values, a row for each number */
    vec *dK, *dV;   /* their gradients */
    vec *live;      /* what is left of the weight of each thing that the state holds; 1 for the others */
    vec *dlive;
    vec *share;     /* cumulative decay of each column since the unroll began or, if later, it was written */
    vec *dshare;
    vec *rows;      /* for passing use, SPARE of them and one for each query that shares keys */
    vec *past;      /* shares after each step, `deep` vectors a step, for step t from vector t / LANES on */
    int64_t deep, start;
    float *spare;   /* 2 rows of numbers, zero at first; the second stays so */
} columns;

enum { SCORES, WEIGHTS, CHANGES, FOUND, MATCHES, SPARE };

INLINE int64_t most(int64_t a, int64_t b) { return a > b ? a : b; }

INLINE int64_t vectors(int64_t numbers) { return (numbers + LANES - 1) / LANES; }

INLINE int64_t width(const window *w) { return vectors(w->M + w->s.T) | 1; /* odd, so that rows share no cache sets */ }

INLINE int64_t depth(const window *w) { return w->M / LANES + 2; }

/* how many numbers a thread needs room for */
int64_t attention_room(const window *w) {
    const span *s = &w->s;
    const int64_t size = vectors(most(s->K, s->V)) * LANES;
    return LANES * (width(w) * (2 * s->K + 2 * s->V + 4 + SPARE + w->G) + depth(w) * s->T) + 2 * size;
}

INLINE void hide_all(columns *c, const span *s) {
    memset(c->K, 0, (s->K + s->V) * c->wide * sizeof(vec)); /* V follows */
    for (int64_t b = 0; b < c->wide; b++) c->live[b] = c->share[b] = (vec){0} + 1.0f;
}

/* this thread's room, with nothing to be seen */
INLINE columns take(const window *w, float *scratch) {
    const span *s = &w->s;
    const int64_t wide = width(w), size = vectors(most(s->K, s->V)) * LANES;
    vec *at = (vec *)(scratch + omp_get_thread_num() * attention_room(w));
    columns c = {.wide = wide, .deep = depth(w)};
    c.K = at, at += s->K * wide;
    c.V = at, at += s->V * wide;
    c.live = at, at += wide;
    c.share = at, at += wide;
    c.rows = at, at += (SPARE + w->G) * wide;
    c.dK = at, at += s->K * wide;
    c.dV = at, at += s->V * wide;
    c.dlive = at, at += wide;
    c.dshare = at, at += wide;
    c.past = at, at += c.deep * s->T;
    c.spare = (float *)at;
    memset(c.spare, 0, 2 * size * sizeof(float));
    hide_all(&c, s);
    return c;
}

INLINE void put(vec *rows, const columns *c, int64_t column, const float *x, int64_t size) {
    float *at = (float *)rows + column;
    for (int64_t d = 0; d < size; d++) at[d * c->wide * LANES] = x ? x[d] : 0.0f;
}

INLINE void get(float *x, const vec *rows, const columns *c, int64_t column, int64_t size) {
    const float *at = (const float *)rows + column;
    for (int64_t d = 0; d < size; d++) x[d] = at[d * c->wide * LANES];
}

INLINE float *number(vec *row, int64_t column) { return (float *)row + column; }

/* Put rows from..to of x, `size` numbers each, into the columns of the same numbers. */
INLINE void put_rows(vec *rows, const columns *c, const float *x, int64_t from, int64_t to, int64_t size) {
    for (int64_t j = from; j <= to;) {
        if (size < LANES || j % LANES || j + LANES - 1 > to) {
            put(rows, c, j, x + j * size, size);
            j++;
            continue;
        }
        for (int64_t d = 0; d < size; d += LANES) {
            const int64_t at = d + LANES <= size ? d : size - LANES; /* the last of them overlap */
            vec block[LANES];
            for (int i = 0; i < LANES; i++) block[i] = *(const loose *)(x + (j + i) * size + at);
            transpose_lanes(block);
            for (int i = 0; i < LANES; i++) rows[(at + i) * c->wide + j / LANES] = block[i];
        }
        j += LANES;
    }
}

/* What is hidden holds ones and zeros: its weight is 0, which times nan would be nan. */
INLINE void hide(columns *c, int64_t column, const span *s) {
    put(c->K, c, column, NULL, s->K);
    put(c->V, c, column, NULL, s->V);
    *number(c->live, column) = 1.0f;
}

/* all ones in lanes whose columns are from..to */
INLINE ints within(int64_t block, int64_t from, int64_t to) {
    ints place;
    for (int i = 0; i < LANES; i++) place[i] = (int32_t)(block * LANES) + i;
    return (place >= (int32_t)from) & (place <= (int32_t)to);
}

/* ---- products ---- */

/* x_s = scale * sum of a_d M[d, s] */
INLINE void across(
    vec *x, const float *a, const vec *M, int64_t size, const columns *c, int64_t first, int64_t last, float scale
) {
    int64_t b = first;
    for (; b + 3 <= last; b += 4) {
        vec x0 = {0}, x1 = {0}, x2 = {0}, x3 = {0};
        for (int64_t d = 0; d < size; d++) {
            const vec *m = M + d * c->wide + b;
            x0 += a[d] * m[0], x1 += a[d] * m[1], x2 += a[d] * m[2], x3 += a[d] * m[3];
        }
        x[b] = scale * x0, x[b + 1] = scale * x1, x[b + 2] = scale * x2, x[b + 3] = scale * x3;
    }
    for (; b <= last; b++) {
        vec sum = {0};
        for (int64_t d = 0; d < size; d++) sum += a[d] * M[d * c->wide + b];
        x[b] = scale * sum;
    }
}

/* y_d = scale * sum of w_s M[d, s] */
INLINE void along(
    float *y, const vec *w, const vec *M, int64_t size, const columns *c, int64_t first, int64_t last, float scale
) {
    int64_t d = 0;
    for (; d + LANES <= size; d += LANES) {
        vec parts[LANES];
        for (int i = 0; i < LANES; i++) {
            parts[i] = (vec){0};
            ACROSS(b) parts[i] += w[b] * M[(d + i) * c->wide + b];
        }
        *(loose *)(y + d) = scale * sums(parts);
    }
    for (; d < size; d++) {
        vec part = {0};
        ACROSS(b) part += w[b] * M[d * c->wide + b];
        y[d] = scale * sum_lanes(part);
    }
}

/* M[d, s] += a_d w_s */
INLINE void add_outer(vec *M, const float *a, const vec *w, int64_t size, const columns *c, int64_t first, int64_t last) {
    for (int64_t d = 0; d < size; d++) ACROSS(b) M[d * c->wide + b] += a[d] * w[b];
}

INLINE float inner(const float *a, const float *b, int64_t size) {
    float sum = 0.0f;
    for (int64_t d = 0; d < size; d++) sum += a[d] * b[d];
    return sum;
}

INLINE float largest(const vec *x, int64_t first, int64_t last) {
    vec m = (vec){0} - INFINITY;
    ACROSS(b) m = choose(x[b] > m, x[b], m);
    float all = m[0];
    for (int i = 1; i < LANES; i++) all = m[i] > all ? m[i] : all;
    return all;
}

/* exp(x) for any x, as the square of exp(x / 2), which reaches all that a float holds; 0 below -87 */
INLINE vec exponential_of_any(vec x) {
    vec rest, power;
    split_exponential(0.5f * choose(x > 89.0f, (vec){0} + 89.0f, x), &rest, &power);
    const vec root = (rest + 1.0f) * power;
    return choose(x < -87.0f, (vec){0}, root * root);
}

/* ---- what rules have in common ---- */

typedef struct {
    int64_t h, b, row; /* row: of [B, H] */
} place;

INLINE place head_of(const span *s, int64_t head) {
    const place p = {head / s->B, head % s->B, (head % s->B) * s->H + head / s->B};
    return p;
}

/* the first column that anything sees: what holds nothing is left out where that changes nothing */
INLINE int64_t first_seen(const window *w, place p, const float *live) {
    int64_t column = 0;
    if (w->skip)
        while (column < w->M && live[p.row * w->M + column] == 0.0f) column++;
    return column;
}

/* Begin with what the state holds. */
INLINE void begin(columns *c, const window *w, place p, const float *keys, const float *values, const float *live) {
    const span *s = &w->s;
    c->start = first_seen(w, p, live);
    memcpy(c->live, live + p.row * w->M, w->M * sizeof(float));
    put_rows(c->K, c, keys + p.row * w->M * s->K, c->start, w->M - 1, s->K);
    put_rows(c->V, c, values + p.row * w->M * s->V, c->start, w->M - 1, s->V);
}

/* Move to step t from the one before: what it sees besides itself are columns (its result) to M + t - 1. */
INLINE int64_t advance(columns *c, const window *w, place p, int64_t t) {
    const span *s = &w->s;
    if (s->reset[t * s->B + p.b]) {
        hide_all(c, s);
        c->start = w->M + t;
    } else if (t && t - 1 >= c->start) {
        hide(c, t - 1, s);
    }
    return most(t, c->start);
}

/* the first column of the episode of step t; `before` is where the unroll's first one begins */
INLINE int64_t start_of(const window *w, place p, int64_t t, int64_t before) {
    for (; t >= 0; t--)
        if (w->s.reset[t * w->s.B + p.b]) return w->M + t;
    return before;
}

INLINE const float *of(strided x, int64_t t, place p) { return x.at + t * x.t + p.b * x.b + p.h * x.h; }

/* Row `column` of what the state holds, else of steps. */
INLINE const float *row_of(const window *w, place p, int64_t column, const float *state, strided own, int64_t size) {
    const int64_t t = column - w->M;
    return t < 0 ? state + (p.row * w->M + column) * size : of(own, t, p);
}

/* Show columns from..to, with gradients of zero. */
INLINE void show(
    columns *c, const window *w, place p, int64_t from, int64_t to, const float *keys, strided k, const float *values,
    strided v, const float *live
) {
    const span *s = &w->s;
    for (int64_t j = from; j <= to; j++) {
        put(c->K, c, j, row_of(w, p, j, keys, k, s->K), s->K);
        put(c->V, c, j, row_of(w, p, j, values, v, s->V), s->V);
        put(c->dK, c, j, NULL, s->K);
        put(c->dV, c, j, NULL, s->V);
        *number(c->dlive, j) = *number(c->dshare, j) = 0.0f;
        *number(c->live, j) = j < w->M ? live[p.row * w->M + j] : 1.0f;
    }
}

/* The state after the unroll: its last M columns, zero where an episode has ended since. */
INLINE void finish(
    const columns *c, const window *w, place p, const float *keys, strided k, const float *values, strided v, float *keys_last,
    float *values_last, float *live_last
) {
    const span *s = &w->s;
    const int64_t begun = start_of(w, p, s->T - 1, 0); /* what holds nothing goes on, too */
    for (int64_t i = 0; i < w->M; i++) {
        const int64_t j = s->T + i, at = p.row * w->M + i;
        float *key = keys_last + at * s->K, *value = values_last + at * s->V;
        if (j < begun) {
            memset(key, 0, s->K * sizeof(float));
            memset(value, 0, s->V * sizeof(float));
            live_last[at] = 0.0f;
            continue;
        }
        const float left = *number(c->share, j);
        const float *from = row_of(w, p, j, values, v, s->V);
        memcpy(key, row_of(w, p, j, keys, k, s->K), s->K * sizeof(float));
        for (int64_t d = 0; d < s->V; d++) value[d] = left * from[d];
        live_last[at] = left * *number(c->live, j);
    }
}

/* Begin to walk back, with the gradients of the last state, which may be NULL. */
INLINE void begin_back(
    columns *c, const window *w, place p, const float *dkeys_last, const float *dvalues_last, const float *dlive_last
) {
    const span *s = &w->s;
    for (int64_t j = most(s->T, c->start); j < w->M + s->T; j++) {
        const int64_t at = p.row * w->M + j - s->T;
        const float left = *number(c->share, j);
        if (dkeys_last) put(c->dK, c, j, dkeys_last + at * s->K, s->K);
        if (dvalues_last) {
            float *value = c->spare;
            get(value, c->V, c, j, s->V);
            *number(c->dshare, j) = inner(value, dvalues_last + at * s->V, s->V);
            for (int64_t d = 0; d < s->V; d++) value[d] = left * dvalues_last[at * s->V + d];
            put(c->dV, c, j, value, s->V);
        }
        if (dlive_last) {
            *number(c->dshare, j) += *number(c->live, j) * dlive_last[at];
            *number(c->dlive, j) = left * dlive_last[at];
        }
    }
}

/* The gradients of the first state; of what no step has seen they are zero. */
INLINE void end_back(const columns *c, const window *w, place p, float *dkeys, float *dvalues, float *dlive) {
    const span *s = &w->s;
    if (!dkeys) return;
    for (int64_t j = 0; j < w->M; j++) {
        const int64_t at = p.row * w->M + j;
        if (j < c->start) {
            memset(dkeys + at * s->K, 0, s->K * sizeof(float));
            memset(dvalues + at * s->V, 0, s->V * sizeof(float));
            dlive[at] = 0.0f;
        } else {
            get(dkeys + at * s->K, c->dK, c, j, s->K);
            get(dvalues + at * s->V, c->dV, c, j, s->V);
            dlive[at] = *number(c->dlive, j);
        }
    }
}

/* ---- attention ---- */

/* Step `to` is added; what it sees of others decays. */
INLINE void decay_shares(columns *c, int64_t from, int64_t to, float rate) {
    const int64_t first = from / LANES, last = to / LANES;
    ACROSS(b) c->share[b] = choose(within(b, from, to - 1), c->share[b] * rate, (vec){0} + 1.0f);
}

/* how many vectors hold what step t may see */
INLINE int64_t blocks_at(const window *w, int64_t t) { return (w->M + t) / LANES - t / LANES + 1; }

/* Bring back the shares after step t. */
INLINE void restore_shares(columns *c, const window *w, int64_t t) {
    memcpy(c->share + t / LANES, c->past + t * c->deep, blocks_at(w, t) * sizeof(vec));
}

/* Turn what `across` found into weights before shares, in place; 0 beyond from..to. Return the largest score. */
INLINE float attend(
    const window *w, const columns *c, vec *x, const float *bias, int64_t from, int64_t to, const float *maximum
) {
    const int64_t first = from / LANES, last = to / LANES;
    if (bias) /* by age: the newest first */
        for (int64_t j = from; j < to; j++) *number(x, j) += bias[to - j - 1];
    ACROSS(b) {
        ints seen = within(b, from, to);
        if (w->second == SOFTMAX) seen &= c->share[b] * c->live[b] != 0.0f;
        x[b] = choose(seen, x[b], (vec){0} - INFINITY);
    }
    if (w->second != SOFTMAX) {
        ACROSS(b) x[b] = choose(within(b, from, to), exponential_of_any(x[b]), (vec){0});
        return 0.0f;
    }
    const float m = maximum ? *maximum : largest(x, first, last);
    ACROSS(b) x[b] = exponential(x[b] - m);
    return m;
}

/* scores_largest and total, [T, B, H], are for backward, or NULL. */
void attention_forward(
    const window *w, strided q, strided k, strided v, strided decay, strided bias, const float *keys, const float *values,
    const float *live, float *y, float *keys_last, float *values_last, float *live_last, float *scores_largest, float *total,
    float *scratch
) {
    const span *s = &w->s;
    const float scale = 1.0f / sqrtf((float)s->K);
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const place p = head_of(s, head);
        columns c = take(w, scratch);
        vec *x = c.rows + SCORES * c.wide, *weights = c.rows + WEIGHTS * c.wide;
        begin(&c, w, p, keys, values, live);
        for (int64_t t = 0; t < s->T; t++) {
            const int64_t from = advance(&c, w, p, t), to = w->M + t, first = from / LANES, last = to / LANES;
            const int64_t at = (t * s->B + p.b) * s->H + p.h;
            const float rate = *of(decay, t, p);
            put(c.K, &c, to, row_of(w, p, to, keys, k, s->K), s->K);
            put(c.V, &c, to, row_of(w, p, to, values, v, s->V), s->V);
            decay_shares(&c, from, to, rate);
            across(x, of(q, t, p), c.K, s->K, &c, first, last, scale);
            const float m = attend(w, &c, x, bias.at ? of(bias, t, p) : NULL, from, to, NULL);
            vec sums_of = {0};
            ACROSS(b) weights[b] = x[b] * c.share[b], sums_of += weights[b] * c.live[b];
            const float divisor = w->second == SOFTMAX ? sum_lanes(sums_of) : 1.0f;
            along(y + at * s->V, weights, c.V, s->V, &c, first, last, 1.0f / divisor);
            if (total) scores_largest[at] = m, total[at] = divisor;
        }
        finish(&c, w, p, keys, k, values, v, keys_last, values_last, live_last);
    }
}

/* Gradients may be NULL: of y and the last state for zeros, dbias and those of the first state where nobody wants them. */
void attention_backward(
    const window *w, strided q, strided k, strided v, strided decay, strided bias, const float *keys, const float *values,
    const float *live, const float *scores_largest, const float *total, const float *dy,
    const float *dkeys_last, const float *dvalues_last, const float *dlive_last, float *dq, float *dk, float *dv,
    float *ddecay, float *dbias, float *dkeys, float *dvalues, float *dlive, float *scratch
) {
    const span *s = &w->s;
    const float scale = 1.0f / sqrtf((float)s->K);
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const place p = head_of(s, head);
        columns c = take(w, scratch);
        vec *x = c.rows + SCORES * c.wide, *weights = c.rows + WEIGHTS * c.wide, *change = c.rows + CHANGES * c.wide;
        const int64_t before = c.start = first_seen(w, p, live);
        for (int64_t t = 0; t < s->T; t++) { /* shares as they were */
            if (s->reset[t * s->B + p.b]) c.start = w->M + t;
            decay_shares(&c, most(t, c.start), w->M + t, *of(decay, t, p));
            memcpy(c.past + t * c.deep, c.share + t / LANES, blocks_at(w, t) * sizeof(vec));
        }
        show(&c, w, p, most(s->T - 1, c.start), w->M + s->T - 1, keys, k, values, v, live);
        begin_back(&c, w, p, dkeys_last, dvalues_last, dlive_last);
        for (int64_t t = s->T - 1; t >= 0; t--) {
            const int64_t from = most(t, c.start), to = w->M + t, first = from / LANES, last = to / LANES;
            const int64_t at = (t * s->B + p.b) * s->H + p.h;
            const float *dy_row = dy ? dy + at * s->V : c.spare + (vectors(most(s->K, s->V)) * LANES);
            const float *q_row = of(q, t, p);
            restore_shares(&c, w, t);
            across(x, q_row, c.K, s->K, &c, first, last, scale);
            attend(w, &c, x, bias.at ? of(bias, t, p) : NULL, from, to, scores_largest + at);
            across(change, dy_row, c.V, s->V, &c, first, last, 1.0f);
            vec matches = {0};
            ACROSS(b) weights[b] = x[b] * c.share[b], matches += weights[b] * change[b];
            const float whole = 1.0f / total[at], mean = w->second == SOFTMAX ? whole * sum_lanes(matches) : 0.0f;
            ACROSS(b) {
                vec dweight = whole * (change[b] - mean * c.live[b]);
                c.dshare[b] += dweight * x[b];
                c.dlive[b] -= whole * mean * weights[b];
                change[b] = dweight * weights[b];
                weights[b] *= whole;
            }
            add_outer(c.dV, dy_row, weights, s->V, &c, first, last);
            if (dbias)
                for (int64_t age = 1; age <= w->M; age++)
                    dbias[at * w->M + age - 1] = to - age >= from ? *number(change, to - age) : 0.0f;
            ACROSS(b) change[b] *= scale;
            add_outer(c.dK, q_row, change, s->K, &c, first, last);
            along(dq + at * s->K, change, c.K, s->K, &c, first, last, 1.0f);
            get(dv + at * s->V, c.dV, &c, to, s->V);
            get(dk + at * s->K, c.dK, &c, to, s->K);
            hide(&c, to, s);
            const float rate = *of(decay, t, p);
            vec gained = {0};
            for (int64_t b = first; b <= (to - 1) / LANES; b++) {
                vec earlier = (vec){0} + 1.0f;
                if (t) earlier = c.past[(t - 1) * c.deep + b - (t - 1) / LANES];
                gained += choose(within(b, from, to - 1), c.dshare[b] * earlier, (vec){0});
                c.dshare[b] *= rate;
            }
            ddecay[at] = sum_lanes(gained);
            if (!t) break;
            if (s->reset[t * s->B + p.b]) {
                c.start = start_of(w, p, t - 1, before);
                show(&c, w, p, most(t - 1, c.start), to - 1, keys, k, values, v, live);
            } else if (t - 1 >= c.start) {
                show(&c, w, p, t - 1, t - 1, keys, k, values, v, live);
            }
        }
        end_back(&c, w, p, dkeys, dvalues, dlive);
    }
}

/* ---- the DeltaFormer ---- */

/* Turn scores into weights for a `live` of one, in place; 0 beyond from..to. */
INLINE void weigh(int64_t kind, vec *x, const columns *c, int64_t from, int64_t to) {
    const int64_t first = from / LANES, last = to / LANES;
    const vec none = (vec){0} - INFINITY;
    if (kind == SOFTMAX) {
        ACROSS(b) x[b] = choose(within(b, from, to) & (c->live[b] != 0.0f), x[b], none);
        float m = largest(x, first, last);
        if (m == -INFINITY) m = 0.0f;
        vec sums_of = {0};
        ACROSS(b) x[b] = exponential(x[b] - m), sums_of += x[b] * c->live[b];
        const float total = sum_lanes(sums_of);
        ACROSS(b) x[b] /= total == 0.0f ? 1.0f : total;
        return;
    }
    ACROSS(b) {
        vec score = choose(c->live[b] != 0.0f, x[b], (vec){0});
        if (kind == EXP) score = exponential_of_any(score);
        if (kind == RELU) score = choose(score < 0.0f, (vec){0}, score);
        if (kind == ROUND) {
            const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to whole numbers, ties to even ones */
            const vec size = (vec)((ints)score & INT32_MAX);
            score = choose(size < 4194304.0f, (score + shift) - shift, score);
        }
        x[b] = choose(within(b, from, to), score, (vec){0});
    }
}

/* Turn the gradient of weights times live into that of scores, in place, and add that of live; f as `weigh` made it. */
INLINE void weigh_back(int64_t kind, vec *d, const vec *f, columns *c, int64_t from, int64_t to) {
    const int64_t first = from / LANES, last = to / LANES;
    float mean = 0.0f;
    if (kind == SOFTMAX) {
        vec sums_of = {0};
        ACROSS(b) sums_of += choose(within(b, from, to), f[b] * c->live[b] * d[b], (vec){0});
        mean = sum_lanes(sums_of);
    }
    ACROSS(b) {
        const vec live = c->live[b], given = choose(within(b, from, to), d[b] - mean, (vec){0});
        c->dlive[b] += f[b] * given;
        if (kind == EXP || kind == SOFTMAX)
            d[b] = f[b] * live * given;
        else
            d[b] = live * given;
        if (kind == RELU) d[b] = choose(f[b] > 0.0f, d[b], (vec){0});
        d[b] = choose(live != 0.0f, d[b], (vec){0});
    }
}

/* What the write of step t finds under w, by column, as the mean of what its G queries do, whose weights for a live of
 * one go into `groups`, a row each; 0 beyond from..to. */
INLINE void find(
    const window *w, columns *c, vec *found, vec *groups, const float *w_row, const float *mix, int64_t from, int64_t to,
    float scale
) {
    const int64_t first = from / LANES, last = to / LANES;
    ACROSS(b) found[b] = (vec){0};
    for (int64_t g = 0; g < w->G; g++) {
        vec *x = groups + g * c->wide;
        across(x, w_row + g * w->s.K, c->K, w->s.K, c, first, last, scale);
        weigh(w->first, x, c, from, to);
        ACROSS(b) found[b] += mix[g] / w->G * x[b] * c->live[b];
    }
}

/* u [T, B, H, V] is what was written; q and write_q, the queries of reads and writes, are [T, B, H, G, K], dense but for
 * T, B, H. */
void deltaformer_forward(
    const window *w, strided q, strided k, strided v, strided write_q, strided alpha, strided beta, const float *mix,
    const float *keys, const float *values, const float *live, float *y, float *u, float *keys_last, float *values_last,
    float *live_last, float *scratch
) {
    const span *s = &w->s;
    const float scale = 1.0f / sqrtf((float)s->K);
    const strided own = {u, s->B * s->H * s->V, s->H * s->V, s->V};
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const place p = head_of(s, head);
        columns c = take(w, scratch);
        vec *x = c.rows + SCORES * c.wide, *found = c.rows + FOUND * c.wide, *groups = c.rows + SPARE * c.wide;
        begin(&c, w, p, keys, values, live);
        for (int64_t t = 0; t < s->T; t++) {
            const int64_t from = advance(&c, w, p, t), to = w->M + t, first = from / LANES, last = to / LANES;
            const int64_t at = (t * s->B + p.b) * s->H + p.h;
            float *u_row = u + at * s->V;
            const float *v_row = of(v, t, p);
            memset(u_row, 0, s->V * sizeof(float));
            if (from < to) {
                find(w, &c, found, groups, of(write_q, t, p), mix + p.h * w->G, from, to - 1, scale);
                along(u_row, found, c.V, s->V, &c, first, (to - 1) / LANES, *of(beta, t, p));
            }
            for (int64_t d = 0; d < s->V; d++) u_row[d] = *of(alpha, t, p) * v_row[d] - u_row[d];
            put(c.K, &c, to, of(k, t, p), s->K);
            put(c.V, &c, to, u_row, s->V);
            for (int64_t g = 0; g < w->G; g++) {
                across(x, of(q, t, p) + g * s->K, c.K, s->K, &c, first, last, scale);
                weigh(w->second, x, &c, from, to);
                ACROSS(b) x[b] *= c.live[b];
                along(y + (at * w->G + g) * s->V, x, c.V, s->V, &c, first, last, 1.0f);
            }
        }
        finish(&c, w, p, keys, k, values, own, keys_last, values_last, live_last);
    }
}

/* Gradients may be NULL as in `attention_backward`. dmix [B, H, G] is each row's own. */
void deltaformer_backward(
    const window *w, strided q, strided k, strided v, strided write_q, strided alpha, strided beta, const float *mix,
    const float *keys, const float *values, const float *live, float *u, const float *dy, const float *dkeys_last,
    const float *dvalues_last, const float *dlive_last, float *dq, float *dk, float *dv, float *dwrite_q, float *dmix,
    float *dalpha, float *dbeta, float *dkeys, float *dvalues, float *dlive, float *scratch
) {
    const span *s = &w->s;
    const float scale = 1.0f / sqrtf((float)s->K);
    const strided own = {u, s->B * s->H * s->V, s->H * s->V, s->V};
#pragma omp parallel for num_threads(s->threads) if (s->threads > 1)
    for (int64_t head = 0; head < s->B * s->H; head++) {
        const place p = head_of(s, head);
        columns c = take(w, scratch);
        vec *x = c.rows + SCORES * c.wide, *weights = c.rows + WEIGHTS * c.wide, *change = c.rows + CHANGES * c.wide;
        vec *found = c.rows + FOUND * c.wide, *match = c.rows + MATCHES * c.wide, *groups = c.rows + SPARE * c.wide;
        const float *mixes = mix + p.h * w->G;
        float *du = c.spare, *dmixes = dmix + p.row * w->G;
        const int64_t before = first_seen(w, p, live);
        c.start = start_of(w, p, s->T - 1, before);
        show(&c, w, p, most(s->T - 1, c.start), w->M + s->T - 1, keys, k, values, own, live);
        begin_back(&c, w, p, dkeys_last, dvalues_last, dlive_last);
        memset(dmixes, 0, w->G * sizeof(float));
        for (int64_t t = s->T - 1; t >= 0; t--) {
            const int64_t from = most(t, c.start), to = w->M + t, first = from / LANES;
            const int64_t at = (t * s->B + p.b) * s->H + p.h;
            int64_t last = to / LANES;
            for (int64_t g = 0; dy && g < w->G; g++) {
                const float *q_row = of(q, t, p) + g * s->K, *dy_row = dy + (at * w->G + g) * s->V;
                across(x, q_row, c.K, s->K, &c, first, last, scale);
                weigh(w->second, x, &c, from, to);
                across(change, dy_row, c.V, s->V, &c, first, last, 1.0f);
                ACROSS(b) weights[b] = x[b] * c.live[b];
                add_outer(c.dV, dy_row, weights, s->V, &c, first, last);
                weigh_back(w->second, change, x, &c, from, to);
                ACROSS(b) change[b] *= scale;
                add_outer(c.dK, q_row, change, s->K, &c, first, last);
                along(dq + (at * w->G + g) * s->K, change, c.K, s->K, &c, first, last, 1.0f);
            }
            if (!dy) memset(dq + at * w->G * s->K, 0, w->G * s->K * sizeof(float));
            get(du, c.dV, &c, to, s->V);
            get(dk + at * s->K, c.dK, &c, to, s->K);
            dalpha[at] = inner(du, of(v, t, p), s->V);
            for (int64_t d = 0; d < s->V; d++) dv[at * s->V + d] = *of(alpha, t, p) * du[d];
            hide(&c, to, s);
            dbeta[at] = 0.0f;
            memset(dwrite_q + at * w->G * s->K, 0, w->G * s->K * sizeof(float));
            last = (to - 1) / LANES;
            if (from < to) {
                const float *w_row = of(write_q, t, p), strength = *of(beta, t, p);
                across(match, du, c.V, s->V, &c, first, last, 1.0f);
                find(w, &c, found, groups, w_row, mixes, from, to - 1, scale);
                for (int64_t g = 0; g < w->G; g++) {
                    const vec *weight = groups + g * c.wide;
                    vec gained = {0};
                    ACROSS(b) {
                        const vec given = -strength / w->G * match[b];
                        gained += choose(within(b, from, to - 1), given * weight[b] * c.live[b], (vec){0});
                        change[b] = mixes[g] * given;
                    }
                    dmixes[g] += sum_lanes(gained);
                    weigh_back(w->first, change, weight, &c, from, to - 1);
                    ACROSS(b) change[b] *= scale;
                    add_outer(c.dK, w_row + g * s->K, change, s->K, &c, first, last);
                    along(dwrite_q + (at * w->G + g) * s->K, change, c.K, s->K, &c, first, last, 1.0f);
                }
                vec gained = {0};
                ACROSS(b) {
                    gained += choose(within(b, from, to - 1), found[b] * match[b], (vec){0});
                    weights[b] = -strength * found[b];
                }
                dbeta[at] = -sum_lanes(gained);
                add_outer(c.dV, du, weights, s->V, &c, first, last);
            }
            if (!t) break;
            if (s->reset[t * s->B + p.b]) {
                c.start = start_of(w, p, t - 1, before);
                show(&c, w, p, most(t - 1, c.start), to - 1, keys, k, values, own, live);
            } else if (t - 1 >= c.start) {
                show(&c, w, p, t - 1, t - 1, keys, k, values, own, live);
            }
        }
        end_back(&c, w, p, dkeys, dvalues, dlive);
    }
}
