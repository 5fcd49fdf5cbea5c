/* 3x3 convolutions of stride 1 and padding 1 by Winograd's minimal filtering (Winograd 1980; Lavin and Gray 2015):
 * M x M outputs take (M + 2)^2 products for each pair of channels instead of 9 M^2. winograd.py documents the
 * functions.
 *
 * y = A^T [(G g G^T) * (B^T x B)] A for each tile of M x M outputs, summed over input channels before the outer
 * transform; gradients are the adjoints. Images are channels-last, channels a multiple of LANES. Channels are the
 * lanes of all transforms, so that these only add vectors. A block of tiles, counted through all frames, stays in
 * the caches from its first transform to its last. */

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#define INLINE static inline __attribute__((always_inline))
#define S (M + 2) /* points: the side of a transformed tile */
#ifdef __AVX512F__
#define LANES 16
#define GROUP (24 / S) /* tiles of which S points are summed in registers at a time */
#define ROWS 16 /* input channels of which weights' gradients are summed in registers at a time */
#else
#define LANES 8
#define GROUP (12 / S)
#define ROWS 8
#endif
#define BLOCK (GROUP * BLOCK_GROUPS) /* tiles */
#ifndef BLOCK_GROUPS
#define BLOCK_GROUPS 2
#endif
#ifndef LONG_BLOCK
#define LONG_BLOCK 48 /* for weights' gradients, which load and store their sums once a block */
#endif

typedef float vec __attribute__((vector_size(4 * LANES), may_alias));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), may_alias));

/* ---- transforms of one dimension; elements of x and y are `from` and `to` apart ---- */

#if M == 2
INLINE void transform_input(vec *y, int64_t to, const vec *x, int64_t from) {
    const vec a = x[0], b = x[from], c = x[2 * from], d = x[3 * from];
    y[0] = a - c, y[to] = b + c, y[2 * to] = c - b, y[3 * to] = b - d;
}

INLINE void transform_weight(vec *y, int64_t to, const vec *x, int64_t from) {
    const vec a = x[0], b = x[from], c = x[2 * from], half = 0.5f * (a + c);
    y[0] = a, y[to] = half + 0.5f * b, y[2 * to] = half - 0.5f * b, y[3 * to] = c;
}

INLINE void transform_output(vec *y, int64_t to, const vec *x, int64_t from) {
    const vec a = x[0], b = x[from], c = x[2 * from], d = x[3 * from];
    y[0] = a + (b + c), y[to] = (b - c) - d;
}

INLINE void adjoint_output(vec *y, int64_t to, const vec *x, int64_t from) {
    const vec a = x[0], b = x[from];
    y[0] = a, y[to] = a + b, y[2 * to] = a - b, y[3 * to] = -b;
}

INLINE void adjoint_weight(vec *y, int64_t to, const vec *x, int64_t from) {
    const vec a = x[0], b = x[from], c = x[2 * from], d = x[3 * from];
    y[0] = a + 0.5f * (b + c), y[to] = 0.5f * (b - c), y[2 * to] = 0.5f * (b + c) + d;
}
#else
INLINE void transform_input(vec *y, int64_t to, const vec *x, int64_t from) {
    const vec a = x[0], b = x[from], c = x[2 * from], d = x[3 * from], e = x[4 * from], f = x[5 * from];
    const vec p = e - 4.0f * c, q = d - 4.0f * b, r = e - c, s = 2.0f * (d - b);
    y[0] = 4.0f * a + (e - 5.0f * c), y[to] = p + q, y[2 * to] = p - q;
    y[3 * to] = r + s, y[4 * to] = r - s, y[5 * to] = 4.0f * b + (f - 5.0f * d);
}

INLINE void transform_weight(vec *y, int64_t to, const vec *x, int64_t from) {
    const vec a = x[0], b = x[from], c = x[2 * from];
    const vec p = (a + c) * (-1.0f / 6), q = b * (1.0f / 6), r = a * (1.0f / 24) + c * (1.0f / 6), s = b * (1.0f / 12);
    y[0] = 0.25f * a, y[to] = p - q, y[2 * to] = p + q, y[3 * to] = r + s, y[4 * to] = r - s, y[5 * to] = c;
}

INLINE void transform_output(vec *y, int64_t to, const vec *x, int64_t from) {
    const vec a = x[0], f = x[5 * from];
    const vec p = x[from] + x[2 * from], q = x[from] - x[2 * from];
    const vec r = x[3 * from] + x[4 * from], s = x[3 * from] - x[4 * from];
    y[0] = a + (p + r), y[to] = q + 2.0f * s, y[2 * to] = p + 4.0f * r, y[3 * to] = (q + f) + 8.0f * s;
}

INLINE void adjoint_output(vec *y, int64_t to, const vec *x, int64_t from) {
    const vec a = x[0], b = x[from], c = x[2 * from], d = x[3 * from];
    const vec p = a + c, q = b + d, r = a + 4.0f * c, s = 2.0f * b + 8.0f * d;
    y[0] = a, y[to] = p + q, y[2 * to] = p - q, y[3 * to] = r + s, y[4 * to] = r - s, y[5 * to] = d;
}

INLINE void adjoint_weight(vec *y, int64_t to, const vec *x, int64_t from) {
    const vec p = x[from] + x[2 * from], q = x[from] - x[2 * from];
    const vec r = x[3 * from] + x[4 * from], s = x[3 * from] - x[4 * from];
    y[0] = 0.25f * x[0] - p * (1.0f / 6) + r * (1.0f / 24);
    y[to] = s * (1.0f / 12) - q * (1.0f / 6);
    y[2 * to] = (r - p) * (1.0f / 6) + x[5 * from];
}
#endif

/* ---- tiles ---- */

typedef struct {
    int64_t n, H, W, down, across; /* frames, their size, and tiles in a frame's columns and rows */
} grid;

INLINE grid grid_of(int64_t n, int64_t H, int64_t W) {
    return (grid){n, H, W, (H + M - 1) / M, (W + M - 1) / M};
}

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* tiles side by side: `count` of a frame's row, from column `left` */
typedef struct {
    int64_t frame, row, left, count;
} strip;

INLINE strip strip_at(const grid *g, int64_t tile, int64_t most) {
    const int64_t row = tile / g->across, left = tile % g->across;
    return (strip){row / g->down, row % g->down, left, least(most, g->across - left)};
}

/* LANES channels of a pixel; zeros outside of the frame, unless it is known to be `inside` */
INLINE vec pixel(const grid *g, const float *x, int64_t C, int64_t row, int64_t column, bool inside) {
    if (!inside && (row < 0 || row >= g->H || column < 0 || column >= g->W)) return (vec){0};
    return *(const loose *)(x + (row * g->W + column) * C);
}

/* the first half of the inner transform of S pixels one above the other */
INLINE void transform_column(
    vec *to, const grid *g, const float *x, int64_t C, int64_t row, int64_t column, bool inside
) {
    vec d[S];
    for (int i = 0; i < S; i++) d[i] = pixel(g, x, C, row + i, column, inside);
    transform_input(to, 1, d, 1);
}

/* V[point][tile][channel] from the S x S pixels under and around each tile of a strip; V at its first tile.
 * Neighbours share two columns of pixels. */
INLINE void input_strip(
    vec *V, int64_t block, const grid *g, strip s, const float *x, int64_t C, bool inside
) {
    const int64_t width = C / LANES, top = s.row * M - 1, start = s.left * M - 1;
    vec columns[S][S];
    for (int j = 0; j < 2; j++) transform_column(columns[j], g, x, C, top, start + j, false);
    for (int64_t t = 0; t < s.count; t++) {
        const int64_t left = start + t * M;
        if (inside && left + S <= g->W)
            for (int j = 2; j < S; j++) transform_column(columns[j], g, x, C, top, left + j, true);
        else
            for (int j = 2; j < S; j++) transform_column(columns[j], g, x, C, top, left + j, false);
        for (int i = 0; i < S; i++)
            transform_input(V + (i * block + t) * width, S * block * width, columns[0] + i, S);
        for (int j = 0; j < 2; j++)
            for (int i = 0; i < S; i++) columns[j][i] = columns[M + j][i];
    }
}

INLINE void input_block(
    vec *V, int64_t block, const grid *g, int64_t first, int64_t count, const float *x, int64_t C
) {
    strip s;
    for (int64_t t = 0; t < count; t += s.count) {
        s = strip_at(g, first + t, count - t);
        const bool inside = s.row > 0 && s.row * M + M < g->H;
        const float *frame = x + s.frame * g->H * g->W * C;
        for (int64_t c = 0; c < C; c += LANES) {
            vec *to = V + (t * C + c) / LANES;
            if (inside) input_strip(to, block, g, s, frame + c, C, true);
            else input_strip(to, block, g, s, frame + c, C, false);
        }
    }
}

/* ---- forward, and the gradient of the input ---- */

/* U[outputs / LANES][column of points][input][row of points]: weights' element of output o, input i and place k is
 * w[o * output + i * input + k * place]; backwards, places are counted from the last */
static void transform_weights(
    vec *U, const float *w, int64_t outputs, int64_t inputs, int64_t output, int64_t input, int64_t place,
    bool backwards
) {
    for (int64_t o = 0; o < outputs; o += LANES)
        for (int64_t i = 0; i < inputs; i++) {
            vec g[9], half[3][S];
            for (int k = 0; k < 9; k++)
                for (int l = 0; l < LANES; l++)
                    ((float *)(g + k))[l] = w[(o + l) * output + i * input + (backwards ? 8 - k : k) * place];
            for (int j = 0; j < 3; j++) transform_weight(half[j], 1, g + j, 3);
            for (int r = 0; r < S; r++)
                transform_weight(U + ((o / LANES * S) * inputs + i) * S + r, inputs * S, half[0] + r, S);
        }
}

/* GROUP tiles' products at S points of a column, summed over inputs, and the outer transform's first half */
INLINE void product(vec *T, const float *V, const vec *U, int64_t C) {
    vec sums[S][GROUP];
    memset(sums, 0, sizeof sums);
    for (int64_t c = 0; c < C; c++)
        for (int i = 0; i < S; i++)
            for (int t = 0; t < GROUP; t++) sums[i][t] += V[(i * BLOCK + t) * C + c] * U[c * S + i];
    for (int t = 0; t < GROUP; t++) transform_output(T + t * M, 1, sums[0] + t, GROUP);
}

typedef struct {
    const float *bias, *mask; /* each may be NULL; where the mask, of y's shape, is not above 0, y becomes 0 */
    bool relu;
} finish;

INLINE void output_block(
    float *y, const vec *T, const grid *g, int64_t first, int64_t count, int64_t C, int64_t c, finish f
) {
    vec bias = {0};
    if (f.bias) bias = *(const loose *)(f.bias + c);
    strip s;
    for (int64_t t = 0; t < count; t += s.count) {
        s = strip_at(g, first + t, count - t);
        for (int64_t k = 0; k < s.count; k++) {
            vec tile[M][M];
            for (int a = 0; a < M; a++) transform_output(tile[a], 1, T + (t + k) * M + a, BLOCK * M);
            for (int a = 0; a < M; a++)
                for (int b = 0; b < M; b++) {
                    const int64_t row = s.row * M + a, column = (s.left + k) * M + b;
                    if (row >= g->H || column >= g->W) continue;
                    const int64_t at = ((s.frame * g->H + row) * g->W + column) * C + c;
                    vec v = tile[a][b] + bias;
                    if (f.relu) v = (vec)(~(v <= 0.0f) & (ints)v); /* a nan stays, as in torch */
                    if (f.mask) v = (vec)(~(*(const loose *)(f.mask + at) <= 0.0f) & (ints)v);
                    *(loose *)(y + at) = v;
                }
        }
    }
}

INLINE void forward_block(
    float *y, const float *x, const vec *U, const grid *g, int64_t first, int64_t C, int64_t outputs, finish f
) {
    const int64_t count = least(BLOCK, g->n * g->down * g->across - first);
    vec V[S * S * BLOCK * C / LANES], T[S * BLOCK * M];
    input_block(V, BLOCK, g, first, count, x, C);
    for (int64_t c = 0; c < outputs; c += LANES) {
        for (int j = 0; j < S; j++) {
            const float *from = (const float *)V + j * S * BLOCK * C;
            for (int64_t t = 0; t < count; t += GROUP)
                product(T + (j * BLOCK + t) * M, from + t * C, U + (c / LANES * S + j) * C * S, C);
        }
        output_block(y, T, g, first, count, outputs, c, f);
    }
}

void convolve(
    int64_t n, int64_t H, int64_t W, int64_t inputs, int64_t outputs, int64_t relu, int64_t transposed,
    int64_t threads, const float *x, const float *w, const float *bias, const float *mask, float *U, float *y
) {
    const grid g = grid_of(n, H, W);
    const int64_t tiles = n * g.down * g.across;
    const finish f = {bias, mask, relu};
    if (transposed) transform_weights((vec *)U, w, outputs, inputs, 1, 9 * outputs, outputs, true);
    else transform_weights((vec *)U, w, outputs, inputs, 9 * inputs, 1, inputs, false);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < tiles; first += BLOCK)
        if (inputs == 16) forward_block(y, x, (vec *)U, &g, first, 16, outputs, f);
        else if (inputs == 32) forward_block(y, x, (vec *)U, &g, first, 32, outputs, f);
        else forward_block(y, x, (vec *)U, &g, first, inputs, outputs, f);
}

/* ---- gradients of weights and bias ---- */

/* D[point][tile][channel]: the adjoint of the outer transform, of dy's M x M pixels */
INLINE void gradient_strip(vec *D, const grid *g, strip s, const float *dy, int64_t C, bool inside) {
    const int64_t width = C / LANES, top = s.row * M;
    for (int64_t t = 0; t < s.count; t++) {
        const int64_t left = (s.left + t) * M;
        vec d[M][M], columns[M][S];
        for (int a = 0; a < M; a++)
            for (int b = 0; b < M; b++) d[b][a] = pixel(g, dy, C, top + a, left + b, inside);
        for (int b = 0; b < M; b++) adjoint_output(columns[b], 1, d[b], 1);
        for (int i = 0; i < S; i++)
            adjoint_output(D + (i * LONG_BLOCK + t) * width, S * LONG_BLOCK * width, columns[0] + i, S);
    }
}

INLINE void gradient_block(vec *D, const grid *g, int64_t first, int64_t count, const float *dy, int64_t C) {
    strip s;
    for (int64_t t = 0; t < count; t += s.count) {
        s = strip_at(g, first + t, count - t);
        strip within = s;
        const bool inside = s.row * M + M <= g->H;
        within.count = inside ? least(s.count, g->W / M - s.left) : 0;
        const strip rest = {s.frame, s.row, s.left + within.count, s.count - within.count};
        const float *frame = dy + s.frame * g->H * g->W * C;
        for (int64_t c = 0; c < C; c += LANES) {
            vec *to = D + (t * C + c) / LANES;
            gradient_strip(to, g, within, frame + c, C, true);
            gradient_strip(to + within.count * C / LANES, g, rest, frame + c, C, false);
        }
    }
}

/* sums[point][input][output] += V[point][tile][input] D[point][tile][output], summed over a block's tiles */
INLINE void add_products(
    vec *sums, vec *bias, const float *V, const vec *D, int64_t count, int64_t inputs, int64_t outputs
) {
    const int64_t width = outputs / LANES;
    for (int64_t p = 0; p < S * S; p++)
        for (int64_t c = 0; c < inputs; c += ROWS)
            for (int64_t o = 0; o < width; o++) {
                vec *to = sums + (p * inputs + c) * width + o, some[ROWS];
                for (int k = 0; k < ROWS; k++) some[k] = to[k * width];
                for (int64_t t = 0; t < count; t++) {
                    const vec d = D[(p * LONG_BLOCK + t) * width + o];
                    const float *v = V + (p * LONG_BLOCK + t) * inputs + c;
                    for (int k = 0; k < ROWS; k++) some[k] += v[k] * d;
                }
                for (int k = 0; k < ROWS; k++) to[k * width] = some[k];
            }
    for (int64_t o = 0; o < width; o++) /* at the point 1, 1 is the sum of a tile's dy */
        for (int64_t t = 0; t < count; t++) bias[o] += D[((S + 1) * LONG_BLOCK + t) * width + o];
}

INLINE void gradient_part(
    vec *sums, const float *x, const float *dy, const grid *g, int64_t first, int64_t end, int64_t inputs,
    int64_t outputs
) {
    vec V[S * S * LONG_BLOCK * inputs / LANES], D[S * S * LONG_BLOCK * outputs / LANES];
    memset(sums, 0, (S * S * inputs + 1) * outputs * sizeof(float));
    for (; first < end; first += LONG_BLOCK) {
        const int64_t count = least(LONG_BLOCK, end - first);
        input_block(V, LONG_BLOCK, g, first, count, x, inputs);
        gradient_block(D, g, first, count, dy, outputs);
        add_products(sums, sums + S * S * inputs * outputs / LANES, (float *)V, D, count, inputs, outputs);
    }
}

/* dw[output][place][input] */
static void finish_weights(float *dw, const vec *sums, int64_t inputs, int64_t outputs) {
    const int64_t width = outputs / LANES;
    for (int64_t o = 0; o < width; o++)
        for (int64_t i = 0; i < inputs; i++) {
            vec half[S][3], g[9];
            for (int j = 0; j < S; j++)
                adjoint_weight(half[j], 1, sums + (j * S * inputs + i) * width + o, inputs * width);
            for (int a = 0; a < 3; a++) adjoint_weight(g + 3 * a, 1, half[0] + a, 3);
            for (int k = 0; k < 9; k++)
                for (int l = 0; l < LANES; l++)
                    dw[((o * LANES + l) * 9 + k) * inputs + i] = ((float *)(g + k))[l];
        }
}

/* Each part's tiles are summed apart and the parts added in order, whichever threads computed them. */
void weight_gradient(
    int64_t n, int64_t H, int64_t W, int64_t inputs, int64_t outputs, int64_t parts, int64_t threads,
    const float *x, const float *dy, float *sums, float *dw, float *db
) {
    const grid g = grid_of(n, H, W);
    const int64_t tiles = n * g.down * g.across, size = (S * S * inputs + 1) * outputs;
    const int64_t each = (tiles + parts - 1) / parts;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t part = 0; part < parts; part++) {
        vec *to = (vec *)(sums + part * size);
        const int64_t first = part * each, end = least(tiles, first + each);
        if (inputs == 16 && outputs == 16) gradient_part(to, x, dy, &g, first, end, 16, 16);
        else if (inputs == 16 && outputs == 32) gradient_part(to, x, dy, &g, first, end, 16, 32);
        else if (inputs == 32 && outputs == 32) gradient_part(to, x, dy, &g, first, end, 32, 32);
        else gradient_part(to, x, dy, &g, first, end, inputs, outputs);
    }
    for (int64_t part = 1; part < parts; part++)
        for (int64_t j = 0; j < size; j++) sums[j] += sums[part * size + j];
    finish_weights(dw, (vec *)sums, inputs, outputs);
    memcpy(db, sums + S * S * inputs * outputs, outputs * sizeof(float));
}
