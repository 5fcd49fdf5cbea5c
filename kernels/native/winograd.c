/* 3x3 convolutions of stride 1 and padding 1 by Winograd's minimal filtering (winograd.h): M x M outputs take (M + 2)^2
 * products for each pair of channels instead of 9 M^2. winograd.py documents the functions. Compiled once for images in
 * float32 (-DBF16=0) and once in bfloat16, which are widened as they are read and rounded as they are written. Weights,
 * their gradients, transforms and sums are float32; so are the factors of products, but for processors that add two
 * products of bfloat16 at a time.
 *
 * Products are summed over input channels before the outer transform; gradients are the adjoints. Images are
 * channels-last, channels a multiple of LANES. Channels are the lanes of all transforms, which so only add and scale
 * vectors. A block of tiles, counted through all frames, stays in the caches from its first transform to its last, and
 * no tile's arithmetic depends on its place in a block. */

#include <stdbool.h>
#include <stdint.h>
#include <string.h>
#if BF16 && defined(__AVX512BF16__)
#include <immintrin.h>
#define TERMS 2
#else
#define TERMS 1
#endif

#include "winograd.h"

#define M 4
#if LANES == 16
#define GROUP (24 / S) /* tiles of which S points are summed in registers at a time */
#define ROWS 16 /* input channels of which weights' gradients are summed in registers at a time */
#else
#define GROUP (12 / S)
#define ROWS 8
#endif
#define BLOCK (2 * GROUP) /* tiles */
#define LONG_BLOCK 48 /* for weights' gradients, which load and store their sums once a block */

typedef uint32_t bits __attribute__((vector_size(4 * LANES)));

#if BF16
typedef uint16_t number;
typedef uint16_t halves __attribute__((vector_size(2 * LANES)));
typedef halves loose_halves __attribute__((aligned(2), may_alias));

INLINE vec load(const number *x) { return (vec)(__builtin_convertvector(*(const loose_halves *)x, bits) << 16); }

/* to nearest, ties to even, and a nan, whose rounding could carry into its sign, to all ones */
INLINE halves rounded(vec x) {
#if TERMS == 2
    return (halves)_mm512_cvtneps_pbh((__m512)x);
#else
    return __builtin_convertvector(((bits)x + 0x7fff + (((bits)x >> 16) & 1)) >> 16 | (bits)(x != x), halves);
#endif
}

INLINE void store(number *y, vec x) { *(loose_halves *)y = rounded(x); }
#else
typedef float number;

INLINE vec load(const number *x) { return *(const loose *)x; }
INLINE void store(number *y, vec x) { *(loose *)y = x; }
#endif

/* Factors of products: a register holds TERMS for each lane. */
#if TERMS == 2
typedef uint16_t factor;

INLINE void put(factor *to, vec x) { store(to, x); }

/* as the i-th of each lane's terms, after those before it */
INLINE void put_term(vec *to, vec x, int64_t i) {
    const bits term = __builtin_convertvector(rounded(x), bits);
    *to = (vec)(i ? (bits)*to | term << 16 : term);
}

/* sum + v u, added up over terms, which are the same for all lanes of v */
INLINE vec plus_products(vec sum, const factor *v, vec u) {
    int32_t terms;
    memcpy(&terms, v, sizeof terms);
    return (vec)_mm512_dpbf16_ps((__m512)sum, (__m512bh)_mm512_set1_epi32(terms), (__m512bh)u);
}
#else
typedef float factor;

INLINE void put(factor *to, vec x) { *(vec *)to = x; }
INLINE void put_term(vec *to, vec x, int64_t i) { *to = x; }
INLINE vec plus_products(vec sum, const factor *v, vec u) { return sum + *v * u; }
#endif

/* ---- tiles ---- */

typedef struct {
    int64_t n, H, W, down, across; /* frames, their size, and tiles in a frame's columns and rows */
} grid;

typedef struct {
    const number *x; /* [n, H, W, C] */
    int64_t C;
    bool rectify; /* numbers as they are read */
} images;

INLINE grid grid_of(int64_t n, int64_t H, int64_t W) {
    return (grid){n, H, W, (H + M - 1) / M, (W + M - 1) / M};
}

/* tiles side by side: `count` of a frame's row, from column `left` */
typedef struct {
    int64_t frame, row, left, count;
} strip;

INLINE strip strip_at(const grid *g, int64_t tile, int64_t most) {
    const int64_t row = tile / g->across, left = tile % g->across;
    return (strip){row / g->down, row % g->down, left, least(most, g->across - left)};
}

/* Factors of a block's products: [S * S points][tile][channel] where channels are summed over, and
 * [S * S points][tiles / TERMS][channel][TERMS] where tiles are. */
typedef struct {
    vec *points;
    int64_t tiles; /* at most */
    bool sum_over_tiles;
} factors;

/* vectors between points of C channels: one more than they need, so that points do not share lines of a cache */
INLINE int64_t apart(int64_t tiles, int64_t C) { return tiles * C / (TERMS * LANES) + 1; }

typedef void transform(vec *y, int64_t to, const vec *x, int64_t from);

INLINE void spread_output(vec *y, int64_t to, const vec *x, int64_t from) { adjoint_output(y, to, x, from, M); }

/* the transform's second half, and its result for LANES of C channels, from channel c, where it goes */
INLINE void put_tile(factors to, int64_t tile, int64_t c, int64_t C, const vec *columns, transform second) {
    for (int i = 0; i < S; i++) {
        vec row[S];
        second(row, 1, columns + i, S);
        for (int j = 0; j < S; j++) {
            vec *point = to.points + (j * S + i) * apart(to.tiles, C);
            if (to.sum_over_tiles) put_term(point + (tile / TERMS * C + c) / LANES, row[j], tile % TERMS);
            else put((factor *)point + tile * C + c, row[j]);
        }
    }
}

/* LANES channels of a frame's pixel; zeros outside of it, which need no look when it is known to be `inside` */
INLINE vec pixel(const grid *g, images of, const number *frame, int64_t row, int64_t column, bool inside) {
    if (!inside && (row < 0 || row >= g->H || column < 0 || column >= g->W)) return (vec){0};
    const vec x = load(frame + (row * g->W + column) * of.C);
    return of.rectify ? where_positive(x, x) : x;
}

/* the first half of the inner transform: S pixels one above the other */
INLINE void transform_column(
    vec *to, const grid *g, images of, const number *frame, int64_t row, int64_t column, bool inside
) {
    vec d[S];
    for (int i = 0; i < S; i++) d[i] = pixel(g, of, frame, row + i, column, inside);
    transform_input(to, 1, d, 1);
}

/* Factors from the S x S pixels under and around each tile of a strip, the block's tile-th the first, for LANES
 * channels from c. Neighbours share two columns of pixels. */
INLINE void input_strip(
    factors to, int64_t tile, int64_t c, const grid *g, strip s, images of, const number *frame, bool inside
) {
    const int64_t top = s.row * M - 1, start = s.left * M - 1;
    vec columns[S * S];
    for (int j = 0; j < 2; j++) transform_column(columns + j * S, g, of, frame, top, start + j, false);
    for (int64_t t = 0; t < s.count; t++) {
        const int64_t left = start + t * M;
        if (inside && left + S <= g->W)
            for (int j = 2; j < S; j++) transform_column(columns + j * S, g, of, frame, top, left + j, true);
        else
            for (int j = 2; j < S; j++) transform_column(columns + j * S, g, of, frame, top, left + j, false);
        put_tile(to, tile + t, c, of.C, columns, transform_input);
        for (int k = 0; k < 2 * S; k++) columns[k] = columns[M * S + k];
    }
}

INLINE void input_block(factors to, const grid *g, int64_t first, int64_t count, images of) {
    const images plain = {of.x, of.C, false}, rectified = {of.x, of.C, true};
    strip s;
    for (int64_t t = 0; t < count; t += s.count) {
        s = strip_at(g, first + t, count - t);
        const bool inside = s.row > 0 && s.row * M + M < g->H;
        for (int64_t c = 0; c < of.C; c += LANES) {
            const number *frame = of.x + s.frame * g->H * g->W * of.C + c;
            if (of.rectify && inside) input_strip(to, t, c, g, s, rectified, frame, true);
            else if (of.rectify) input_strip(to, t, c, g, s, rectified, frame, false);
            else if (inside) input_strip(to, t, c, g, s, plain, frame, true);
            else input_strip(to, t, c, g, s, plain, frame, false);
        }
    }
}

/* ---- forward, and the gradient of the input ---- */

/* U[outputs / LANES][column of points][inputs / TERMS][row of points][LANES][TERMS] from w [outputs, 3, 3, inputs];
 * for the gradient of the input, whose inputs are the outputs of w, from w [inputs, 3, 3, outputs] with places counted
 * from the last */
void transform_weights(int64_t inputs, int64_t outputs, int64_t transposed, const float *w, float *U) {
    const int64_t output = transposed ? 1 : 9 * inputs, input = transposed ? 9 * outputs : 1;
    const int64_t place = transposed ? -outputs : inputs;
    if (transposed) w += 8 * outputs;
    vec lanes[9 * inputs];
    for (int64_t o = 0; o < outputs; o += LANES) {
        for (int64_t l = 0; l < LANES; l++)
            for (int64_t k = 0; k < 9; k++)
                for (int64_t i = 0; i < inputs; i++)
                    ((float *)(lanes + i * 9 + k))[l] = w[(o + l) * output + i * input + k * place];
        for (int64_t i = 0; i < inputs; i++) {
            vec half[3 * S];
            for (int j = 0; j < 3; j++) transform_weight(half + j * S, 1, lanes + i * 9 + j, 3, 3);
            for (int r = 0; r < S; r++) {
                vec row[S], *to = (vec *)U + (o / LANES * S * inputs + i) / TERMS * S + r;
                transform_weight(row, 1, half + r, S, 3);
                for (int j = 0; j < S; j++) put_term(to + j * inputs / TERMS * S, row[j], i % TERMS);
            }
        }
    }
}

/* the products of GROUP tiles at a column of points, summed over inputs, and the outer transform's first half */
INLINE void product(vec *T, const vec *V, int64_t tile, const vec *U, int64_t C) {
    const factor *v = (const factor *)V + tile * C;
    const int64_t point = apart(BLOCK, C) * TERMS * LANES;
    vec sums[S * GROUP];
    memset(sums, 0, sizeof sums);
    for (int64_t c = 0; c < C; c += TERMS, U += S)
        for (int i = 0; i < S; i++)
            for (int t = 0; t < GROUP; t++) {
                vec *sum = sums + i * GROUP + t;
                *sum = plus_products(*sum, v + i * point + t * C + c, U[i]);
            }
    for (int t = 0; t < GROUP; t++) transform_output(T + t * M, 1, sums + t, GROUP, M);
}

/* what happens to outputs before they are stored, in this order; pointers may be NULL */
typedef struct {
    const float *bias; /* [C], is added */
    bool relu;
    const number *mask; /* [n, H, W, C]: where it is not above 0, y becomes 0 */
    const number *add; /* [n, H, W, C] */
} finish;

INLINE void output_block(
    number *y, const vec *T, const grid *g, int64_t first, int64_t count, int64_t C, int64_t c, finish f
) {
    vec bias = {0};
    if (f.bias) bias = *(const loose *)(f.bias + c);
    strip s;
    for (int64_t t = 0; t < count; t += s.count) {
        s = strip_at(g, first + t, count - t);
        for (int64_t k = 0; k < s.count; k++) {
            vec tile[M * M];
            for (int a = 0; a < M; a++) transform_output(tile + a * M, 1, T + (t + k) * M + a, BLOCK * M, M);
            for (int a = 0; a < M; a++)
                for (int b = 0; b < M; b++) {
                    const int64_t row = s.row * M + a, column = (s.left + k) * M + b;
                    if (row >= g->H || column >= g->W) continue;
                    const int64_t at = ((s.frame * g->H + row) * g->W + column) * C + c;
                    vec v = tile[a * M + b] + bias;
                    if (f.relu) v = where_positive(v, v);
                    if (f.mask) v = where_positive(load(f.mask + at), v);
                    if (f.add) v += load(f.add + at);
                    store(y + at, v);
                }
        }
    }
}

/* Ask for LANES channels of a tile's pixels, shifted by `shift` down and to the right, to be read or written soon. */
INLINE void prefetch(const grid *g, int64_t tile, const number *x, int64_t C, int64_t shift, bool write) {
    if (tile >= g->n * g->down * g->across) return;
    const strip s = strip_at(g, tile, 1);
    for (int a = 0; a < M; a++)
        for (int b = 0; b < M; b++) {
            const int64_t row = least(s.row * M + a + shift, g->H - 1);
            const int64_t column = least(s.left * M + b + shift, g->W - 1);
            const number *at = x + ((s.frame * g->H + row) * g->W + column) * C;
            if (write) __builtin_prefetch(at, 1);
            else __builtin_prefetch(at);
        }
}

INLINE void forward_block(
    number *y, images x, const vec *U, const grid *g, int64_t first, int64_t outputs, finish f, bool distant
) {
    const int64_t count = least(BLOCK, g->n * g->down * g->across - first), point = apart(BLOCK, x.C);
    vec V[S * S * point], T[S * BLOCK * M];
    input_block((factors){V, BLOCK, false}, g, first, count, x);
    for (int64_t c = 0; c < outputs; c += LANES) {
        for (int j = 0; j < S; j++)
            for (int64_t t = 0; t < count; t += GROUP) {
                const int64_t k = j * (BLOCK / GROUP) + t / GROUP;
                if (distant && k < BLOCK) {
                    prefetch(g, first + k, y + c, outputs, 0, true);
                    for (int64_t i = c; i < x.C; i += outputs) prefetch(g, first + BLOCK + k, x.x + i, x.C, 1, false);
                }
                const vec *u = U + (c / LANES * S + j) * (x.C / TERMS) * S;
                product(T + (j * BLOCK + t) * M, V + j * S * point, t, u, x.C);
            }
        output_block(y, T, g, first, count, outputs, c, f);
    }
}

/* U comes from transform_weights, aligned to vectors; `distant`: images are not in the caches yet */
void convolve(
    int64_t n, int64_t H, int64_t W, int64_t inputs, int64_t outputs, int64_t rectify, int64_t relu,
    int64_t distant, int64_t threads, const number *x, const float *U, const float *bias, const number *mask,
    const number *add, number *y
) {
    const grid g = grid_of(n, H, W);
    const int64_t tiles = n * g.down * g.across;
    const finish f = {bias, relu, mask, add};
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < tiles; first += BLOCK)
        if (inputs == 16 && distant) forward_block(y, (images){x, 16, rectify}, (vec *)U, &g, first, outputs, f, true);
        else if (inputs == 16) forward_block(y, (images){x, 16, rectify}, (vec *)U, &g, first, outputs, f, false);
        else if (inputs == 32 && distant)
            forward_block(y, (images){x, 32, rectify}, (vec *)U, &g, first, outputs, f, true);
        else if (inputs == 32) forward_block(y, (images){x, 32, rectify}, (vec *)U, &g, first, outputs, f, false);
        else forward_block(y, (images){x, inputs, rectify}, (vec *)U, &g, first, outputs, f, false);
}

/* ---- gradients of weights and bias ---- */

/* Factors from dy's M x M pixels by the outer transform's adjoint, as in input_strip. Returns the sum of dy. */
INLINE vec gradient_strip(
    factors to, int64_t tile, int64_t c, const grid *g, strip s, images dy, const number *frame, bool inside
) {
    vec sum = {0};
    for (int64_t t = 0; t < s.count; t++) {
        vec d[M], columns[M * S];
        for (int b = 0; b < M; b++) {
            for (int a = 0; a < M; a++) {
                d[a] = pixel(g, dy, frame, s.row * M + a, (s.left + t) * M + b, inside);
                sum += d[a];
            }
            spread_output(columns + b * S, 1, d, 1);
        }
        put_tile(to, tile + t, c, dy.C, columns, spread_output);
    }
    return sum;
}

INLINE void gradient_block(factors to, vec *bias, const grid *g, int64_t first, int64_t count, images dy) {
    strip s;
    for (int64_t t = 0; t < count; t += s.count) {
        s = strip_at(g, first + t, count - t);
        strip whole = s, rest = s; /* tiles of which all pixels are in the frame, and others */
        whole.count = s.row * M + M <= g->H ? least(s.count, g->W / M - s.left) : 0;
        rest.left += whole.count, rest.count -= whole.count;
        for (int64_t c = 0; c < dy.C; c += LANES) {
            const number *frame = dy.x + s.frame * g->H * g->W * dy.C + c;
            bias[c / LANES] += gradient_strip(to, t, c, g, whole, dy, frame, true);
            bias[c / LANES] += gradient_strip(to, t + whole.count, c, g, rest, dy, frame, false);
        }
    }
}

/* sums[point][input][output] += V[point][tile][input] D[point][tile][output], summed over a block's tiles; terms of
 * the last that there are no tiles for are 0 */
INLINE void add_products(vec *sums, const vec *V, const vec *D, int64_t count, int64_t inputs, int64_t outputs) {
    const int64_t width = outputs / LANES;
    for (int64_t p = 0; p < S * S; p++)
        for (int64_t c = 0; c < inputs; c += ROWS)
            for (int64_t o = 0; o < width; o++) {
                const factor *v = (const factor *)(V + p * apart(LONG_BLOCK, inputs)) + c * TERMS;
                const vec *d = D + p * apart(LONG_BLOCK, outputs) + o;
                vec *to = sums + (p * inputs + c) * width + o, some[ROWS];
                for (int k = 0; k < ROWS; k++) some[k] = to[k * width];
                for (int64_t t = 0; t < count; t += TERMS, v += TERMS * inputs, d += width)
                    for (int k = 0; k < ROWS; k++) some[k] = plus_products(some[k], v + k * TERMS, *d);
                for (int k = 0; k < ROWS; k++) to[k * width] = some[k];
            }
}

INLINE void gradient_part(vec *sums, images x, images dy, const grid *g, int64_t first, int64_t end) {
    vec V[S * S * apart(LONG_BLOCK, x.C)], D[S * S * apart(LONG_BLOCK, dy.C)];
    for (; first < end; first += LONG_BLOCK) {
        const int64_t count = least(LONG_BLOCK, end - first);
        input_block((factors){V, LONG_BLOCK, true}, g, first, count, x);
        vec *bias = sums + S * S * x.C * dy.C / LANES;
        gradient_block((factors){D, LONG_BLOCK, true}, bias, g, first, count, dy);
        add_products(sums, V, D, count, x.C, dy.C);
    }
}

/* Add to sums [parts, (S * S * inputs + 1) * outputs], aligned to vectors: for each point and input, then for the
 * bias. A part's tiles are summed apart, so that threads change nothing. */
void add_weight_gradient(
    int64_t n, int64_t H, int64_t W, int64_t inputs, int64_t outputs, int64_t rectify, int64_t parts,
    int64_t threads, const number *x, const number *dy, float *sums
) {
    const grid g = grid_of(n, H, W);
    const int64_t tiles = n * g.down * g.across, size = (S * S * inputs + 1) * outputs;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t part = 0; part < parts; part++) {
        const int64_t first = tiles * part / parts, end = tiles * (part + 1) / parts;
        vec *to = (vec *)(sums + part * size);
        if (inputs == 16 && outputs == 16)
            gradient_part(to, (images){x, 16, rectify}, (images){dy, 16, false}, &g, first, end);
        else if (inputs == 16 && outputs == 32)
            gradient_part(to, (images){x, 16, rectify}, (images){dy, 32, false}, &g, first, end);
        else if (inputs == 32 && outputs == 32)
            gradient_part(to, (images){x, 32, rectify}, (images){dy, 32, false}, &g, first, end);
        else gradient_part(to, (images){x, inputs, rectify}, (images){dy, outputs, false}, &g, first, end);
    }
}

/* dw [outputs, 3, 3, inputs] and db; the first part of sums becomes the sum of all */
void weight_gradient(int64_t inputs, int64_t outputs, int64_t parts, float *sums, float *dw, float *db) {
    const int64_t width = outputs / LANES, size = (S * S * inputs + 1) * outputs;
    for (int64_t part = 1; part < parts; part++)
        for (int64_t j = 0; j < size; j++) sums[j] += sums[part * size + j];
    for (int64_t o = 0; o < width; o++)
        for (int64_t i = 0; i < inputs; i++) {
            vec half[S * 3], g[9];
            for (int j = 0; j < S; j++)
                adjoint_weight(half + j * 3, 1, (vec *)sums + (j * S * inputs + i) * width + o, inputs * width, 3);
            for (int a = 0; a < 3; a++) adjoint_weight(g + 3 * a, 1, half + a, 3, 3);
            for (int k = 0; k < 9; k++)
                for (int l = 0; l < LANES; l++)
                    dw[((o * LANES + l) * 9 + k) * inputs + i] = ((float *)(g + k))[l];
        }
    memcpy(db, sums + S * S * inputs * outputs, outputs * sizeof(float));
}
