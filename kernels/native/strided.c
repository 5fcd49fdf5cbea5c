/* Convolutions without padding whose kernels are R = 2 or 3 strides wide, and a rectifier after them, by Winograd's
 * minimal filtering (winograd.h). strided.py documents the functions.
 *
 * A square of stride x stride pixels is one cell with the numbers of all of them, Q = stride^2 C, as `stride` runs of
 * stride C. Cells make a convolution of stride 1 and R x R weights, which takes S^2 products for M x M outputs,
 * M = 7 - R, instead of (R M)^2. All of a cell's numbers are summed over in one product of matrices for each of the
 * S^2 points: [tiles, Q] x [Q, outputs] forward, and its two gradients backward.
 *
 * Images are channels-last, runs and channels of outputs a multiple of LANES, which are the lanes of all transforms.
 * Blocks of tiles, counted through all frames, go from their first transform to their last in `scratch`; no tile's
 * arithmetic depends on its place in a block. */

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "winograd.h"

#define BLOCK 24 /* tiles */
#define WIDEST 6 /* rows of a product that are summed in registers at a time */
#define PAIR 2   /* the same, of the rows that remain */

typedef struct {
    int64_t run, runs, pitch; /* numbers in a run, runs in a cell, numbers from one run to the next */
    int64_t frame, cell; /* numbers in a frame, and of one row from one cell to the next */
    int64_t Q, O;
    int64_t height, width; /* outputs of a frame */
    int64_t down, across; /* tiles of a frame */
    int R, M;
} shape;

INLINE shape shape_of(int64_t H, int64_t W, int64_t C, int64_t stride, int64_t O, int R) {
    const int64_t height = H / stride - R + 1, width = W / stride - R + 1, M = 7 - R;
    return (shape){
        .run = stride * C, .runs = stride, .pitch = W * C, .frame = H * W * C, .cell = stride * C,
        .Q = stride * stride * C, .O = O, .height = height, .width = width,
        .down = (height + M - 1) / M, .across = (width + M - 1) / M, .R = R, .M = M,
    };
}

/* where the q-th number of a frame's first cell is */
INLINE int64_t in_cell(const shape *s, int64_t q) { return q / s->run * s->pitch + q % s->run; }

typedef struct {
    int64_t frame, row, column; /* of its first output */
} place;

INLINE place place_of(const shape *s, int64_t tile) {
    const int64_t row = tile / s->across;
    return (place){row / s->down, row % s->down * s->M, tile % s->across * s->M};
}

/* whether all S x S cells, or M x M outputs, of a tile are there: `extent` is S or M */
INLINE bool is_whole(const shape *s, place at, int extent) {
    const int more = extent - s->M; /* cells beyond the outputs of a row */
    return at.row + extent <= s->height + more && at.column + extent <= s->width + more;
}

/* whether a tile has the i-th row and j-th column: all, or in an image of so many */
INLINE bool is_there(bool whole, place at, int i, int j, int64_t rows, int64_t columns) {
    return whole || (at.row + i < rows && at.column + j < columns);
}

/* vectors between points of tiles with N numbers each: one more than they need, so that points do not share lines of a
 * cache */
INLINE int64_t apart(int64_t N) { return BLOCK * N / LANES + 1; }

/* ---- tiles to points and back: LANES numbers of one tile at a time ---- */

/* V = B^T x B, from the cells that begin at x */
INLINE void cells_to_points(vec *V, int64_t point, const float *x, const shape *s, place at, bool whole) {
    const int64_t row_pitch = s->runs * s->pitch, rows = s->height + s->R - 1, columns = s->width + s->R - 1;
    vec half[S * S];
    for (int j = 0; j < S; j++) {
        vec d[S];
        for (int i = 0; i < S; i++) {
            d[i] = (vec){0};
            if (is_there(whole, at, i, j, rows, columns)) d[i] = *(const loose *)(x + i * row_pitch + j * s->cell);
        }
        transform_input(half + j * S, 1, d, 1);
    }
    for (int i = 0; i < S; i++) {
        vec row[S];
        transform_input(row, 1, half + i, S);
        for (int j = 0; j < S; j++) V[(i * S + j) * point] = row[j];
    }
}

/* x += the adjoint of V */
INLINE void points_to_cells(float *x, const vec *V, int64_t point, const shape *s, place at, bool whole) {
    const int64_t row_pitch = s->runs * s->pitch, rows = s->height + s->R - 1, columns = s->width + s->R - 1;
    vec half[S * S];
    for (int i = 0; i < S; i++) {
        vec row[S];
        for (int j = 0; j < S; j++) row[j] = V[(i * S + j) * point];
        adjoint_input(half + i, S, row, 1);
    }
    for (int j = 0; j < S; j++) {
        vec d[S];
        adjoint_input(d, 1, half + j * S, 1);
        for (int i = 0; i < S; i++)
            if (is_there(whole, at, i, j, rows, columns))
                *(loose *)(x + i * row_pitch + j * s->cell) += d[i];
    }
}

/* y = relu(A^T P A + bias) */
INLINE void points_to_outputs(
    float *y, const vec *P, int64_t point, vec bias, const shape *s, place at, int M, bool whole
) {
    vec half[S * 5];
    for (int i = 0; i < S; i++) {
        vec row[S];
        for (int j = 0; j < S; j++) row[j] = P[(i * S + j) * point];
        transform_output(half + i, S, row, 1, M);
    }
    for (int b = 0; b < M; b++) {
        vec column[5];
        transform_output(column, 1, half + b * S, 1, M);
        for (int a = 0; a < M; a++) {
            if (!is_there(whole, at, a, b, s->height, s->width)) continue;
            const vec v = column[a] + bias;
            *(loose *)(y + (a * s->width + b) * s->O) = where_positive(v, v);
        }
    }
}

/* D = the adjoint, from dy where y is above 0. Returns the sum of these. */
INLINE vec outputs_to_points(
    vec *D, int64_t point, const float *y, const float *dy, const shape *s, place at, int M, bool whole
) {
    vec sum = {0}, half[S * 5];
    for (int b = 0; b < M; b++) {
        vec d[5];
        for (int a = 0; a < M; a++) {
            const int64_t k = (a * s->width + b) * s->O;
            d[a] = (vec){0};
            if (is_there(whole, at, a, b, s->height, s->width))
                d[a] = where_positive(*(const loose *)(y + k), *(const loose *)(dy + k));
            sum += d[a];
        }
        adjoint_output(half + b * S, 1, d, 1, M);
    }
    for (int i = 0; i < S; i++) {
        vec row[S];
        adjoint_output(row, 1, half + i, S, M);
        for (int j = 0; j < S; j++) D[(i * S + j) * point] = row[j];
    }
    return sum;
}

/* ---- products ---- */

/* vectors of each row of weights that are read together */
INLINE int panel(int64_t N) { return N / LANES % 2 ? 1 : 2; }

/* vectors between points of weights, as `apart` */
INLINE int64_t weights_apart(int64_t K, int64_t N) { return K * N / LANES + 1; }

/* for `rows` tiles and `width` vectors of outputs, summed in registers */
INLINE void add_up(vec *P, const float *v, const vec *U, int64_t K, int64_t vectors, int rows, int width) {
    vec sums[WIDEST][2];
    memset(sums, 0, sizeof sums);
    for (int64_t k = 0; k < K; k++)
        for (int t = 0; t < rows; t++)
            for (int w = 0; w < width; w++) sums[t][w] += v[t * K + k] * U[k * width + w];
    for (int t = 0; t < rows; t++)
        for (int w = 0; w < width; w++) P[t * vectors + w] = sums[t][w];
}

INLINE void multiply_by(vec *P, const vec *V, const vec *U, int64_t count, int64_t K, int64_t N, int width) {
    const int64_t vectors = N / LANES;
    const float *v = (const float *)V;
    for (int64_t n = 0; n < vectors; n += width, U += K * width) {
        int64_t t = 0;
        for (; t + WIDEST <= count; t += WIDEST) add_up(P + t * vectors + n, v + t * K, U, K, vectors, WIDEST, width);
        for (; t < count; t += PAIR) add_up(P + t * vectors + n, v + t * K, U, K, vectors, PAIR, width);
    }
}

/* P [tiles, N] = V [tiles, K] U [K, N] at each point; U in panels [N / LANES / width][K][width] */
static void multiply(vec *P, const vec *V, const vec *U, int64_t count, int64_t K, int64_t N) {
    for (int p = 0; p < S * S; p++, P += apart(N), V += apart(K), U += weights_apart(K, N))
        if (panel(N) == 2) multiply_by(P, V, U, count, K, N, 2);
        else multiply_by(P, V, U, count, K, N, 1);
}

/* for `rows` numbers of a cell and `width` vectors of outputs, summed over tiles in registers */
INLINE void add_outer(
    vec *sums, const float *v, const vec *d, int64_t count, int64_t Q, int64_t vectors, int rows, int width
) {
    vec some[WIDEST][2];
    for (int k = 0; k < rows; k++)
        for (int w = 0; w < width; w++) some[k][w] = sums[k * vectors + w];
    for (int64_t t = 0; t < count; t++, v += Q, d += vectors)
        for (int k = 0; k < rows; k++)
            for (int w = 0; w < width; w++) some[k][w] += v[k] * d[w];
    for (int k = 0; k < rows; k++)
        for (int w = 0; w < width; w++) sums[k * vectors + w] = some[k][w];
}

INLINE void add_gradients_by(
    vec *sums, const vec *V, const vec *D, int64_t count, int64_t Q, int64_t O, int width
) {
    const int64_t vectors = O / LANES;
    const float *v = (const float *)V;
    for (int64_t o = 0; o < vectors; o += width, sums += width, D += width) {
        int64_t q = 0;
        for (; q + WIDEST <= Q; q += WIDEST) add_outer(sums + q * vectors, v + q, D, count, Q, vectors, WIDEST, width);
        for (; q < Q; q += PAIR) add_outer(sums + q * vectors, v + q, D, count, Q, vectors, PAIR, width);
    }
}

/* sums [Q, O] += V^T [Q, tiles] D [tiles, O] at each point */
static void add_gradients(vec *sums, const vec *V, const vec *D, int64_t count, int64_t Q, int64_t O) {
    for (int p = 0; p < S * S; p++, sums += Q * O / LANES, V += apart(Q), D += apart(O))
        if (panel(O) == 2) add_gradients_by(sums, V, D, count, Q, O, 2);
        else add_gradients_by(sums, V, D, count, Q, O, 1);
}

/* ---- blocks of tiles ---- */

/* the last pair's tile beyond `count` become zeros */
INLINE void fill_up(vec *V, int64_t count, int64_t N) {
    for (int64_t t = count; t % PAIR; t++)
        for (int p = 0; p < S * S; p++) memset(V + p * apart(N) + t * N / LANES, 0, N * sizeof(float));
}

static void read_cells(vec *V, const float *x, const shape *s, int64_t first, int64_t count) {
    for (int64_t t = 0; t < count; t++) {
        const place at = place_of(s, first + t);
        const bool whole = is_whole(s, at, S);
        const float *start = x + at.frame * s->frame + at.row * s->runs * s->pitch + at.column * s->cell;
        for (int64_t q = 0; q < s->Q; q += LANES) {
            vec *to = V + (t * s->Q + q) / LANES;
            if (whole) cells_to_points(to, apart(s->Q), start + in_cell(s, q), s, at, true);
            else cells_to_points(to, apart(s->Q), start + in_cell(s, q), s, at, false);
        }
    }
    fill_up(V, count, s->Q);
}

static void add_to_cells(float *x, const vec *V, const shape *s, int64_t first, int64_t count) {
    for (int64_t t = 0; t < count; t++) {
        const place at = place_of(s, first + t);
        const bool whole = is_whole(s, at, S);
        float *start = x + at.frame * s->frame + at.row * s->runs * s->pitch + at.column * s->cell;
        for (int64_t q = 0; q < s->Q; q += LANES) {
            const vec *from = V + (t * s->Q + q) / LANES;
            if (whole) points_to_cells(start + in_cell(s, q), from, apart(s->Q), s, at, true);
            else points_to_cells(start + in_cell(s, q), from, apart(s->Q), s, at, false);
        }
    }
}

INLINE void write_outputs(
    float *y, const vec *P, const float *bias, const shape *s, int64_t first, int64_t count, int M
) {
    for (int64_t t = 0; t < count; t++) {
        const place at = place_of(s, first + t);
        const bool whole = is_whole(s, at, M);
        float *start = y + ((at.frame * s->height + at.row) * s->width + at.column) * s->O;
        for (int64_t o = 0; o < s->O; o += LANES) {
            const vec b = *(const loose *)(bias + o), *from = P + (t * s->O + o) / LANES;
            if (whole) points_to_outputs(start + o, from, apart(s->O), b, s, at, M, true);
            else points_to_outputs(start + o, from, apart(s->O), b, s, at, M, false);
        }
    }
}

INLINE void read_outputs(
    vec *D, vec *bias, const float *y, const float *dy, const shape *s, int64_t first, int64_t count, int M
) {
    for (int64_t t = 0; t < count; t++) {
        const place at = place_of(s, first + t);
        const bool whole = is_whole(s, at, M);
        const int64_t start = ((at.frame * s->height + at.row) * s->width + at.column) * s->O;
        for (int64_t o = 0; o < s->O; o += LANES) {
            vec *to = D + (t * s->O + o) / LANES;
            const float *of_y = y + start + o, *of_dy = dy + start + o;
            if (whole) bias[o / LANES] += outputs_to_points(to, apart(s->O), of_y, of_dy, s, at, M, true);
            else bias[o / LANES] += outputs_to_points(to, apart(s->O), of_y, of_dy, s, at, M, false);
        }
    }
    fill_up(D, count, s->O);
}

/* ---- what Python calls ---- */

/* numbers of scratch for each thread */
int64_t scratch_size(int64_t Q, int64_t O) { return S * S * (apart(Q) + apart(O)) * LANES; }

INLINE vec *own(vec *scratch, const shape *s) {
    return scratch + omp_get_thread_num() * (scratch_size(s->Q, s->O) / LANES);
}

/* numbers of transformed weights for K inputs and N outputs */
int64_t weights_size(int64_t K, int64_t N) { return S * S * weights_apart(K, N) * LANES; }

/* U for `multiply` from w [O, kernel, kernel, C]: K are the cell's numbers and N the outputs, or, if transposed, the
 * other way round */
void transform_weights(int64_t C, int64_t stride, int64_t O, int64_t R, int64_t transposed, const float *w, vec *U) {
    const shape s = shape_of(0, R * stride, C, stride, O, R); /* a kernel as an image */
    const int64_t kernel = R * stride * s.pitch, K = transposed ? O : s.Q, N = transposed ? s.Q : O;
    const int width = panel(N);
    for (int64_t o = 0; o < O; o += LANES)
        for (int64_t q = 0; q < s.Q; q += LANES) {
            vec g[9][LANES];
            for (int k = 0; k < R * R; k++) {
                const float *from = w + o * kernel + in_cell(&s, q) + k / R * stride * s.pitch + k % R * s.cell;
                for (int l = 0; l < LANES; l++) g[k][l] = *(const loose *)(from + l * kernel);
                if (!transposed) transpose_lanes(g[k]);
            }
            for (int l = 0; l < LANES; l++) {
                const int64_t k = (transposed ? o : q) + l, n = (transposed ? q : o) / LANES;
                vec *to = U + (n / width * K + k) * width + n % width, half[3 * S], row[S];
                for (int b = 0; b < R; b++) {
                    vec column[3];
                    for (int a = 0; a < R; a++) column[a] = g[a * R + b][l];
                    transform_weight(half + b * S, 1, column, 1, R);
                }
                for (int i = 0; i < S; i++) {
                    transform_weight(row, 1, half + i, S, R);
                    for (int j = 0; j < S; j++) to[(i * S + j) * weights_apart(K, N)] = row[j];
                }
            }
        }
}

/* y [n, height, width, O] = relu(convolution of x [n, H, W, C] + bias) */
void convolve(
    int64_t n, int64_t H, int64_t W, int64_t C, int64_t stride, int64_t O, int64_t R, int64_t threads, const float *x,
    const vec *U, const float *bias, float *y, vec *scratch
) {
    const shape s = shape_of(H, W, C, stride, O, R);
    const int64_t tiles = n * s.down * s.across, blocks = (tiles + BLOCK - 1) / BLOCK;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t part = 0; part < threads; part++) {
        vec *V = own(scratch, &s), *P = V + S * S * apart(s.Q);
        for (int64_t block = blocks * part / threads; block < blocks * (part + 1) / threads; block++) {
            const int64_t first = block * BLOCK, count = least(BLOCK, tiles - first);
            read_cells(V, x, &s, first, count);
            multiply(P, V, U, count, s.Q, O);
            if (R == 2) write_outputs(y, P, bias, &s, first, count, 5);
            else write_outputs(y, P, bias, &s, first, count, 4);
        }
    }
}

/* From dy to dx, unless it is NULL, and, added to sums [parts, (S * S * Q + 1) * O], what gradients of weights and bias
 * are made of. A part's frames are summed apart, so that threads change nothing. U is transposed. */
void differentiate(
    int64_t n, int64_t H, int64_t W, int64_t C, int64_t stride, int64_t O, int64_t R, int64_t parts, int64_t threads,
    const float *x, const float *y, const float *dy, const vec *U, float *dx, float *sums, vec *scratch
) {
    const shape s = shape_of(H, W, C, stride, O, R);
    const int64_t size = (S * S * s.Q + 1) * O, each = s.down * s.across;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t part = 0; part < parts; part++) {
        const int64_t start = n * part / parts, end = n * (part + 1) / parts;
        vec *V = own(scratch, &s), *D = V + S * S * apart(s.Q);
        vec *to = (vec *)(sums + part * size), *bias = to + S * S * s.Q * O / LANES;
        for (int64_t first = start * each; first < end * each; first += BLOCK) {
            const int64_t count = least(BLOCK, end * each - first);
            read_cells(V, x, &s, first, count);
            if (R == 2) read_outputs(D, bias, y, dy, &s, first, count, 5);
            else read_outputs(D, bias, y, dy, &s, first, count, 4);
            add_gradients(to, V, D, count, s.Q, O);
            if (!dx) continue;
            multiply(V, D, U, count, O, s.Q);
            add_to_cells(dx, V, &s, first, count);
        }
    }
}

/* dw [O, kernel, kernel, C] and db; the first part of sums becomes the sum of all */
void weight_gradient(
    int64_t C, int64_t stride, int64_t O, int64_t R, int64_t parts, float *sums, float *dw, float *db
) {
    const shape s = shape_of(0, R * stride, C, stride, O, R);
    const int64_t kernel = R * stride * s.pitch, size = (S * S * s.Q + 1) * O, vectors = O / LANES;
    for (int64_t part = 1; part < parts; part++)
        for (int64_t j = 0; j < size; j++) sums[j] += sums[part * size + j];
    for (int64_t o = 0; o < O; o += LANES)
        for (int64_t q = 0; q < s.Q; q += LANES) {
            vec g[9][LANES];
            for (int l = 0; l < LANES; l++) {
                const vec *from = (const vec *)sums + (q + l) * vectors + o / LANES;
                vec half[3 * S], column[3];
                for (int j = 0; j < S; j++) adjoint_weight(half + j, S, from + j * s.Q * vectors, S * s.Q * vectors, R);
                for (int a = 0; a < R; a++) {
                    adjoint_weight(column, 1, half + a * S, 1, R);
                    for (int b = 0; b < R; b++) g[a * R + b][l] = column[b];
                }
            }
            for (int k = 0; k < R * R; k++) {
                float *to = dw + o * kernel + in_cell(&s, q) + k / R * stride * s.pitch + k % R * s.cell;
                transpose_lanes(g[k]);
                for (int l = 0; l < LANES; l++) *(loose *)(to + l * kernel) = g[k][l];
            }
        }
    memcpy(db, sums + S * S * s.Q * O, O * sizeof(float));
}
