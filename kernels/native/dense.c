/* Dense layers for few rows, without gradients, and the LSTM: products with slow weights and what stands between
 * them. dense.py and lstm.py call the functions.
 *
 * Inside, the rows of a batch are the lanes: number k of a panel holds input k of up to LANES rows. Lanes never
 * interact, LayerNorm sums from panel entry to panel entry, and a weight is read once, as torch keeps it, and
 * multiplies all rows. So any number of rows works; those that are missing are computed as zeros and not stored.
 *
 * A thread takes a block of up to PANELS panels, one after the other in memory, at a time: where registers hold 8
 * rows, a weight that was read multiplies two of them. */

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "heads.h"
#include "vectors.h"

#define PANELS (16 / LANES)
#define TILE 8 /* outputs that are summed in registers at a time: of one panel */
#define TILE_OF_TWO 6
#define LINE 16 /* numbers of a line of a cache */
#define SHORT 512 /* numbers of a row of weights */

const int64_t register_rows = REGISTER;

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* panels of so many rows */
INLINE int64_t panels(int64_t rows) { return (rows + LANES - 1) / LANES; }

/* rows of a block: so few that every thread has some */
INLINE int64_t block_rows(int64_t rows, int64_t threads) {
    return LANES * least(PANELS, panels((rows + threads - 1) / threads));
}

typedef struct {
    const float *weight, *bias;
} affine; /* of a LayerNorm, or of a product, whose bias may be NULL */

/* panel[k][row] = x[row][k]: up to LANES rows of `size` numbers, `stride` apart */
static void gather_panel(vec *panel, const float *x, int64_t rows, int64_t size, int64_t stride) {
    for (int64_t k = 0; k < size; k += LANES) {
        const int64_t width = least(LANES, size - k);
        vec a[LANES];
        for (int64_t j = 0; j < LANES; j++) {
            a[j] = (vec){0};
            if (j < rows && width == LANES) a[j] = *(const loose *)(x + j * stride + k);
            else if (j < rows) memcpy(a + j, x + j * stride + k, width * sizeof(float));
        }
        transpose_lanes(a);
        memcpy(panel + k, a, width * sizeof(vec));
    }
}

/* the rows of a block, whose panels are `apart` */
INLINE void gather_apart(vec *block, int64_t apart, const float *x, int64_t rows, int64_t size) {
    for (int64_t row = 0; row < rows; row += LANES, block += apart)
        gather_panel(block, x + row * size, least(LANES, rows - row), size, size);
}

static void gather(vec *block, const float *x, int64_t rows, int64_t size) {
    gather_apart(block, size, x, rows, size);
}

static void scatter_panel(float *x, const vec *panel, int64_t rows, int64_t size) {
    for (int64_t k = 0; k < size; k += LANES) {
        const int64_t width = least(LANES, size - k);
        vec a[LANES];
        memset(a, 0, sizeof a);
        memcpy(a, panel + k, width * sizeof(vec));
        transpose_lanes(a);
        for (int64_t j = 0; j < rows; j++) {
            if (width == LANES) *(loose *)(x + j * size + k) = a[j];
            else memcpy(x + j * size + k, a + j, width * sizeof(float));
        }
    }
}

static void scatter(float *x, const vec *block, int64_t rows, int64_t size) {
    for (int64_t row = 0; row < rows; row += LANES, block += size)
        scatter_panel(x + row * size, block, least(LANES, rows - row), size);
}

INLINE vec rectified(vec x) {
    ints dead = x <= 0.0f; /* a nan stays, as in torch */
    return (vec)(~dead & (ints)x);
}

/* `count` outputs of a product for each of P panels: y_i = b_i + sum over k of w_ik x_k, or y_i += the same */
INLINE void tile(
    vec *y, int64_t apart, const vec *x, const float *w, const float *bias, int64_t K, int P, int count, bool add,
    bool relu
) {
    vec sums[2][TILE];
    for (int p = 0; p < P; p++)
        for (int i = 0; i < count; i++) sums[p][i] = (vec){0};
    int64_t k = 0;
    for (; k + LINE <= K; k += LINE) {
        /* The weights of the next tile, since those of a layer may lie in a far cache. Along long rows processors fetch
         * ahead by themselves. */
        if (K <= SHORT)
            for (int i = 0; i < count; i++) __builtin_prefetch(w + (count + i) * K + k);
        for (int64_t j = k; j < k + LINE; j++)
            for (int i = 0; i < count; i++)
                for (int p = 0; p < P; p++) sums[p][i] += w[i * K + j] * x[p * K + j];
    }
    for (; k < K; k++)
        for (int i = 0; i < count; i++)
            for (int p = 0; p < P; p++) sums[p][i] += w[i * K + k] * x[p * K + k];
    for (int p = 0; p < P; p++)
        for (int i = 0; i < count; i++) {
            vec sum = sums[p][i];
            if (bias) sum += bias[i];
            if (add) sum += y[p * apart + i];
            y[p * apart + i] = relu ? rectified(sum) : sum;
        }
}

INLINE void product_of(
    vec *y, int64_t apart, const vec *x, affine a, int64_t K, int64_t N, int P, int count, bool add, bool relu
) {
    int64_t n = 0;
    for (; n + count <= N; n += count)
        tile(y + n, apart, x, a.weight + n * K, a.bias ? a.bias + n : 0, K, P, count, add, relu);
    for (; n + 2 <= N; n += 2)
        tile(y + n, apart, x, a.weight + n * K, a.bias ? a.bias + n : 0, K, P, 2, add, relu);
    for (; n < N; n++) tile(y + n, apart, x, a.weight + n * K, a.bias ? a.bias + n : 0, K, P, 1, add, relu);
}

/* N outputs for each row of a block, from K inputs; the panels of y are `apart` */
INLINE void product_apart(
    vec *y, int64_t apart, const vec *x, affine a, int64_t rows, int64_t K, int64_t N, bool add, bool relu
) {
    if (PANELS > 1 && rows > LANES) product_of(y, apart, x, a, K, N, 2, TILE_OF_TWO, add, relu);
    else product_of(y, apart, x, a, K, N, 1, TILE, add, relu);
}

INLINE void product(vec *y, const vec *x, affine a, int64_t rows, int64_t K, int64_t N, bool add, bool relu) {
    product_apart(y, N, x, a, rows, K, N, add, relu);
}

static void normalize(vec *y, const vec *x, affine a, float eps, int64_t rows, int64_t size) {
    for (int64_t row = 0; row < rows; row += LANES, x += size, y += size) {
        vec mean = {0}, square = {0}, scale;
        for (int64_t k = 0; k < size; k++) mean += x[k];
        mean /= (float)size;
        for (int64_t k = 0; k < size; k++) square += (x[k] - mean) * (x[k] - mean);
        square = square / (float)size + eps;
        for (int j = 0; j < LANES; j++) ((float *)&scale)[j] = 1.0f / sqrtf(((float *)&square)[j]);
        for (int64_t k = 0; k < size; k++) y[k] = (x[k] - mean) * scale * a.weight[k] + a.bias[k];
    }
}

/* y = x wᵀ + b, rectified if relu: x [rows, K], w [N, K], y [rows, N]. The bias may be NULL. */
void linear(
    int64_t threads, int64_t rows, int64_t K, int64_t N, int64_t relu, const float *x, const float *w,
    const float *bias, float *y
) {
    const int64_t block = block_rows(rows, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row += block) {
        const int64_t some = least(block, rows - row), P = panels(some);
        vec in[P * K], out[P * N];
        gather(in, x + row * K, some, K);
        if (relu) product(out, in, (affine){w, bias}, some, K, N, false, true);
        else product(out, in, (affine){w, bias}, some, K, N, false, false);
        scatter(y + row * N, out, some, N);
    }
}

/* y = LN(x) wᵀ + b: x [rows, K], w [N, K], y [rows, N] */
void normalized_linear(
    int64_t threads, int64_t rows, int64_t K, int64_t N, float eps, const float *x, const float *norm,
    const float *norm_bias, const float *w, const float *bias, float *y
) {
    const int64_t block = block_rows(rows, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row += block) {
        const int64_t some = least(block, rows - row), P = panels(some);
        vec in[P * K], out[P * N];
        gather(in, x + row * K, some, K);
        normalize(in, in, (affine){norm, norm_bias}, eps, some, K);
        product(out, in, (affine){w, bias}, some, K, N, false, false);
        scatter(y + row * N, out, some, N);
    }
}

/* z = x + y w0ᵀ + b0, result = z + relu(LN(z) w1ᵀ + b1) w2ᵀ + b2: x, y, result [rows, d], w1 [ff, d], w2 [d, ff] */
void residual_feedforward(
    int64_t threads, int64_t rows, int64_t d, int64_t ff, float eps, const float *x, const float *y,
    const float *w0, const float *b0, const float *norm, const float *norm_bias, const float *w1, const float *b1,
    const float *w2, const float *b2, float *result
) {
    const int64_t block = block_rows(rows, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row += block) {
        const int64_t some = least(block, rows - row), P = panels(some);
        vec z[P * d], in[P * d], hidden[P * ff];
        gather(z, x + row * d, some, d);
        gather(in, y + row * d, some, d);
        product(z, in, (affine){w0, b0}, some, d, d, true, false);
        normalize(in, z, (affine){norm, norm_bias}, eps, some, d);
        product(hidden, in, (affine){w1, b1}, some, d, ff, false, true);
        product(z, hidden, (affine){w2, b2}, some, ff, d, true, false);
        scatter(result + row * d, z, some, d);
    }
}

/* What a core reads: y [rows, N + 1], of which N are relu(x wᵀ + b), through a LayerNorm first if `norm` is not NULL, and
 * the last is the reward, clamped to ±limit. x [rows, K], w [N, K]; projected [rows, N] becomes x wᵀ + b, or is NULL. */
void core_input(
    int64_t threads, int64_t rows, int64_t K, int64_t N, float eps, float limit, const float *x, const float *w,
    const float *bias, const float *norm, const float *norm_bias, const float *reward, float *projected, float *y
) {
    const int64_t block = block_rows(rows, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < rows; first += block) {
        const int64_t some = least(block, rows - first), P = panels(some);
        vec in[P * K], out[P * (N + 1)], *panel = out;
        gather(in, x + first * K, some, K);
        product_apart(out, N + 1, in, (affine){w, bias}, some, K, N, false, false);
        for (int64_t row = first; row < first + some; row += LANES, panel += N + 1) {
            const int64_t here = least(LANES, first + some - row);
            if (projected) scatter_panel(projected + row * N, panel, here, N);
            if (norm) normalize(panel, panel, (affine){norm, norm_bias}, eps, here, N);
            for (int64_t n = 0; n < N; n++) panel[n] = rectified(panel[n]);
            panel[N] = (vec){0};
            memcpy(panel + N, reward + row, here * sizeof(float));
            panel[N] = choose(panel[N] > limit, (vec){0} + limit, panel[N]);
            panel[N] = choose(panel[N] < -limit, (vec){0} - limit, panel[N]);
            scatter_panel(y + row * (N + 1), panel, here, N + 1);
        }
    }
}

/* The index of the largest of each row's A logits or, with exp_noise drawn from Exp(1), of p_a / exp_noise_a, p being
 * their softmax: a sample from it. 0 where they are no numbers. */
INLINE ints chosen(const vec *logits, const vec *exp_noise, int64_t A) {
    vec most = logits[0], best;
    ints index = {0};
    for (int64_t a = 1; a < A; a++) most = choose(logits[a] > most, logits[a], most);
    for (int64_t a = 0; a < A; a++) {
        vec score = logits[a];
        if (exp_noise) score = exponential(score - most) / exp_noise[a];
        if (a == 0) best = score;
        const ints better = score > best;
        best = choose(better, score, best);
        index = (better & (int32_t)a) | (~better & index);
    }
    return index;
}

/* logits [rows, A] = x w_pᵀ + b_p, value [rows] = x w_vᵀ + b_v, and actions [rows], the likeliest or, with exp_noise
 * [rows, A] drawn from Exp(1), drawn from the policy. x [rows, K] */
void heads(
    int64_t threads, int64_t rows, int64_t K, int64_t A, const float *x, const float *w_p, const float *b_p,
    const float *w_v, const float *b_v, const float *exp_noise, float *logits, float *value, int64_t *action
) {
    const int64_t block = block_rows(rows, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t first = 0; first < rows; first += block) {
        const int64_t some = least(block, rows - first), P = panels(some);
        vec in[P * K], out[P * (A + 1)], draws[A], *panel = out;
        gather(in, x + first * K, some, K);
        product_apart(out, A + 1, in, (affine){w_p, b_p}, some, K, A, false, false);
        product_apart(out + A, A + 1, in, (affine){w_v, b_v}, some, K, 1, false, false);
        for (int64_t row = first; row < first + some; row += LANES, panel += A + 1) {
            const int64_t here = least(LANES, first + some - row);
            scatter_panel(logits + row * A, panel, here, A);
            memcpy(value + row, panel + A, here * sizeof(float));
            if (exp_noise) gather_panel(draws, exp_noise + row * A, here, A, A);
            const ints index = chosen(panel, exp_noise ? draws : 0, A);
            for (int64_t j = 0; j < here; j++) action[row + j] = ((const int32_t *)&index)[j];
        }
    }
}

static void to_normalized_elu(vec *x, int64_t size, float epsilon) {
    vec sum = {0};
    for (int64_t k = 0; k < size; k++) {
        x[k] = choose(x[k] > 0.0f, x[k] + 1.0f, exponential(negative(x[k])));
        sum += x[k];
    }
    sum += epsilon;
    for (int64_t k = 0; k < size; k++) x[k] /= sum;
}

/* y = (elu(x) + 1) / (its sum + epsilon), row by row: x has rows `stride` apart, y [rows, size] */
void normalized_elu(
    int64_t threads, int64_t rows, int64_t size, int64_t stride, float epsilon, const float *x, float *y
) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row += LANES) {
        const int64_t some = least(LANES, rows - row);
        vec in[size];
        gather_panel(in, x + row * stride, some, size, stride);
        to_normalized_elu(in, size, epsilon);
        scatter(y + row * size, in, some, size);
    }
}

/* ---- the LSTM ---- */

/* all bits set in the lanes of rows that go on at step t, where `reset` [T, B] is false */
INLINE ints going_on(const bool *reset, int64_t some) {
    ints mask = {0};
    for (int64_t j = 0; j < some; j++) ((int32_t *)&mask)[j] = reset[j] ? 0 : -1;
    return mask;
}

/* a block of N numbers a row, which become 0 in the rows that do not go on */
INLINE void clear(vec *block, const bool *reset, int64_t rows, int64_t N) {
    for (int64_t row = 0; row < rows; row += LANES, block += N) {
        const ints alive = going_on(reset + row, least(LANES, rows - row));
        for (int64_t n = 0; n < N; n++) block[n] = (vec)(alive & (ints)block[n]);
    }
}

/* From sums a [4 N] for i, f, g, o and c to the next output and c; a [6 N] becomes what backward needs. */
INLINE void lstm_cell(vec *a, vec *now, vec *c, int64_t N) {
    for (int64_t n = 0; n < N; n++) {
        vec i = sigmoid_of(a[n]), f = sigmoid_of(a[N + n]), g = tanh_of(a[2 * N + n]), o = sigmoid_of(a[3 * N + n]);
        a[n] = i, a[N + n] = f, a[2 * N + n] = g, a[3 * N + n] = o, a[4 * N + n] = c[n];
        c[n] = f * c[n] + i * g;
        a[5 * N + n] = tanh_of(c[n]);
        now[n] = o * a[5 * N + n];
    }
}

/* T steps. gates [T, B, 4 N] is the input's share of i, f, g, o, weight [4 N, N]; h [T, B, N] are the outputs.
 * For backward, or NULL: hs [T, B, N], the output before each step, and for each step and LANES rows a panel of i, f,
 * g, o, c before and tanh(c) after, all after the resets. */
void lstm_forward(
    int64_t threads, int64_t T, int64_t B, int64_t N, const float *gates, const float *weight, const float *h0,
    const float *c0, const bool *reset, float *h, float *c_last, float *hs, vec *saved_gates
) {
    const int64_t block = block_rows(B, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < B; row += block) {
        const int64_t some = least(block, B - row), P = panels(some);
        vec now[P * N], c[P * N], one_step[P * 6 * N];
        gather(now, h0 + row * N, some, N);
        gather(c, c0 + row * N, some, N);
        for (int64_t t = 0; t < T; t++) {
            const int64_t at = t * B + row;
            vec *a = saved_gates ? saved_gates + (t * panels(B) + row / LANES) * 6 * N : one_step;
            clear(now, reset + at, some, N);
            clear(c, reset + at, some, N);
            if (hs) scatter(hs + at * N, now, some, N);
            gather_apart(a, 6 * N, gates + at * 4 * N, some, 4 * N);
            product_apart(a, 6 * N, now, (affine){weight, 0}, some, N, 4 * N, true, false);
            for (int64_t p = 0; p < P; p++) lstm_cell(a + p * 6 * N, now + p * N, c + p * N, N);
            scatter(h + at * N, now, some, N);
        }
        scatter(c_last + row * N, c, some, N);
    }
}

/* One step without gradients, from x [B, K]: w_x [4 N, K], w_h [4 N, N] and both biases. `hs` and `saved_gates` are as in
 * lstm_forward, for this step t, or NULL. */
void lstm_step(
    int64_t threads, int64_t B, int64_t K, int64_t N, int64_t t, const float *x, const float *w_x, const float *w_h,
    const float *b_x, const float *b_h, const float *h0, const float *c0, const bool *reset, float *h, float *c_last,
    float *hs, vec *saved_gates
) {
    const int64_t block = block_rows(B, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < B; row += block) {
        const int64_t some = least(block, B - row), P = panels(some);
        vec in[P * K], now[P * N], c[P * N], one_step[P * 6 * N];
        vec *a = saved_gates ? saved_gates + (t * panels(B) + row / LANES) * 6 * N : one_step;
        gather(in, x + row * K, some, K);
        gather(now, h0 + row * N, some, N);
        gather(c, c0 + row * N, some, N);
        clear(now, reset + row, some, N);
        clear(c, reset + row, some, N);
        if (hs) scatter(hs + (t * B + row) * N, now, some, N);
        product_apart(a, 6 * N, in, (affine){w_x, b_x}, some, K, 4 * N, false, false);
        product_apart(a, 6 * N, now, (affine){w_h, b_h}, some, N, 4 * N, true, false);
        for (int64_t p = 0; p < P; p++) lstm_cell(a + p * 6 * N, now + p * N, c + p * N, N);
        scatter(h + row * N, now, some, N);
        scatter(c_last + row * N, c, some, N);
    }
}

/* From gradients dh of the output and dc of c after a step to d [4 N] of i, f, g, o and to dc before it, but for the
 * resets; a [6 N] is what the step saved. */
INLINE void lstm_cell_backward(vec *d, vec *dc, const vec *dh, const vec *a, int64_t N) {
    for (int64_t n = 0; n < N; n++) {
        vec i = a[n], f = a[N + n], g = a[2 * N + n], o = a[3 * N + n], c = a[4 * N + n], y = a[5 * N + n];
        dc[n] += dh[n] * o * (1.0f - y * y);
        d[n] = dc[n] * g * i * (1.0f - i);
        d[N + n] = dc[n] * c * f * (1.0f - f);
        d[2 * N + n] = dc[n] * i * (1.0f - g * g);
        d[3 * N + n] = dh[n] * y * o * (1.0f - o);
        dc[n] *= f;
    }
}

/* weight_T [N, 4 N]. The gradients dy of h and dc_last may be NULL, meaning zeros. */
void lstm_backward(
    int64_t threads, int64_t T, int64_t B, int64_t N, const float *weight_T, const bool *reset, const vec *saved_gates,
    const float *dy, const float *dc_last, float *dgates, float *dh0, float *dc0
) {
    const int64_t block = block_rows(B, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < B; row += block) {
        const int64_t some = least(block, B - row), P = panels(some);
        vec dh[P * N], dc[P * N], from_y[P * N], d[P * 4 * N];
        memset(dh, 0, sizeof dh), memset(dc, 0, sizeof dc), memset(from_y, 0, sizeof from_y);
        if (dc_last) gather(dc, dc_last + row * N, some, N);
        for (int64_t t = T - 1; t >= 0; t--) {
            const int64_t at = t * B + row;
            const vec *a = saved_gates + (t * panels(B) + row / LANES) * 6 * N;
            if (dy) gather(from_y, dy + at * N, some, N);
            for (int64_t n = 0; n < P * N; n++) dh[n] += from_y[n];
            for (int64_t p = 0; p < P; p++)
                lstm_cell_backward(d + p * 4 * N, dc + p * N, dh + p * N, a + p * 6 * N, N);
            scatter(dgates + at * 4 * N, d, some, 4 * N);
            product(dh, d, (affine){weight_T, 0}, some, 4 * N, N, false, false);
            clear(dh, reset + at, some, N);
            clear(dc, reset + at, some, N);
        }
        scatter(dh0 + row * N, dh, some, N);
        scatter(dc0 + row * N, dc, some, N);
    }
}

/* ---- the GRU ---- */

/* From the input's share a [3 N] and the recurrent one b [3 N] of r, z, n to the next output; a [5 N] becomes what
 * backward needs. */
INLINE void gru_cell(vec *a, const vec *b, vec *now, int64_t N) {
    for (int64_t n = 0; n < N; n++) {
        vec r = sigmoid_of(a[n] + b[n]), z = sigmoid_of(a[N + n] + b[N + n]), c = tanh_of(a[2 * N + n] + r * b[2 * N + n]);
        a[n] = r, a[N + n] = z, a[2 * N + n] = c, a[3 * N + n] = b[2 * N + n], a[4 * N + n] = now[n];
        now[n] = c + z * (now[n] - c);
    }
}

/* As lstm_forward; gates [T, B, 3 N], weight [3 N, N], bias [3 N], and a panel is r, z, n, the recurrent share of n
 * and the output before. */
void gru_forward(
    int64_t threads, int64_t T, int64_t B, int64_t N, const float *gates, const float *weight, const float *bias,
    const float *h0, const bool *reset, float *h, float *hs, vec *saved_gates
) {
    const int64_t block = block_rows(B, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < B; row += block) {
        const int64_t some = least(block, B - row), P = panels(some);
        vec now[P * N], recurrent[P * 3 * N], one_step[P * 5 * N];
        gather(now, h0 + row * N, some, N);
        for (int64_t t = 0; t < T; t++) {
            const int64_t at = t * B + row;
            vec *a = saved_gates ? saved_gates + (t * panels(B) + row / LANES) * 5 * N : one_step;
            clear(now, reset + at, some, N);
            if (hs) scatter(hs + at * N, now, some, N);
            gather_apart(a, 5 * N, gates + at * 3 * N, some, 3 * N);
            product(recurrent, now, (affine){weight, bias}, some, N, 3 * N, false, false);
            for (int64_t p = 0; p < P; p++) gru_cell(a + p * 5 * N, recurrent + p * 3 * N, now + p * N, N);
            scatter(h + at * N, now, some, N);
        }
    }
}

/* One step without gradients, from x [B, K]: w_x [3 N, K], w_h [3 N, N] and both biases. */
void gru_step(
    int64_t threads, int64_t B, int64_t K, int64_t N, const float *x, const float *w_x, const float *w_h, const float *b_x,
    const float *b_h, const float *h0, const bool *reset, float *h
) {
    const int64_t block = block_rows(B, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < B; row += block) {
        const int64_t some = least(block, B - row), P = panels(some);
        vec in[P * K], now[P * N], a[P * 5 * N], recurrent[P * 3 * N];
        gather(in, x + row * K, some, K);
        gather(now, h0 + row * N, some, N);
        clear(now, reset + row, some, N);
        product_apart(a, 5 * N, in, (affine){w_x, b_x}, some, K, 3 * N, false, false);
        product(recurrent, now, (affine){w_h, b_h}, some, N, 3 * N, false, false);
        for (int64_t p = 0; p < P; p++) gru_cell(a + p * 5 * N, recurrent + p * 3 * N, now + p * N, N);
        scatter(h + row * N, now, some, N);
    }
}

/* From the gradient dh of the output after a step to dn, that of the input's share of n, to d [3 N] of the recurrent
 * shares of r, z, n, and to what of dh goes past the gates; a [5 N] is what the step saved. */
INLINE void gru_cell_backward(vec *d, vec *dn, vec *dh, const vec *a, int64_t N) {
    for (int64_t n = 0; n < N; n++) {
        vec r = a[n], z = a[N + n], c = a[2 * N + n], m = a[3 * N + n], h = a[4 * N + n];
        dn[n] = dh[n] * (1.0f - z) * (1.0f - c * c);
        d[n] = dn[n] * m * r * (1.0f - r);
        d[N + n] = dh[n] * (h - c) * z * (1.0f - z);
        d[2 * N + n] = dn[n] * r;
        dh[n] *= z;
    }
}

/* weight_T [N, 3 N]. Gradients of both shares of r, z, n; dy, that of h, may be NULL, meaning zeros. */
void gru_backward(
    int64_t threads, int64_t T, int64_t B, int64_t N, const float *weight_T, const bool *reset, const vec *saved_gates,
    const float *dy, float *dgates, float *drecurrent, float *dh0
) {
    const int64_t block = block_rows(B, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < B; row += block) {
        const int64_t some = least(block, B - row), P = panels(some);
        vec dh[P * N], from_y[P * N], d[P * 3 * N], dn[P * N];
        memset(dh, 0, sizeof dh), memset(from_y, 0, sizeof from_y);
        for (int64_t t = T - 1; t >= 0; t--) {
            const int64_t at = t * B + row;
            const vec *a = saved_gates + (t * panels(B) + row / LANES) * 5 * N;
            if (dy) gather(from_y, dy + at * N, some, N);
            for (int64_t n = 0; n < P * N; n++) dh[n] += from_y[n];
            for (int64_t p = 0; p < P; p++)
                gru_cell_backward(d + p * 3 * N, dn + p * N, dh + p * N, a + p * 5 * N, N);
            scatter(drecurrent + at * 3 * N, d, some, 3 * N);
            product(dh, d, (affine){weight_T, 0}, some, 3 * N, N, true, false);
            for (int64_t p = 0; p < P; p++) memcpy(d + (3 * p + 2) * N, dn + p * N, N * sizeof(vec));
            scatter(dgates + at * 3 * N, d, some, 3 * N);
            clear(dh, reset + at, some, N);
        }
        scatter(dh0 + row * N, dh, some, N);
    }
}

/* ---- a whole step of fast weights and the backbone around them ---- */

/* activations of what a slow net emits, in the order of backbone.py */
enum { IDENTITY, NORMALIZED_ELU, SOFTMAX, SIGMOID, TWICE_SIGMOID, UNIT, ROOT2, SIGMOID_ROOT };

static void to_softmax(vec *x, int64_t size) {
    vec largest = x[0], sum = {0};
    for (int64_t k = 1; k < size; k++) largest = choose(x[k] > largest, x[k], largest);
    for (int64_t k = 0; k < size; k++) {
        x[k] = exponential(x[k] - largest);
        sum += x[k];
    }
    for (int64_t k = 0; k < size; k++) x[k] /= sum;
}

/* divide by the length, which is taken to be at least 1e-12, and multiply */
static void to_length(vec *x, int64_t size, float length) {
    vec sum = {0};
    for (int64_t k = 0; k < size; k++) sum += x[k] * x[k];
    for (int64_t j = 0; j < LANES; j++) {
        float *each = (float *)&sum + j;
        *each = length / fmaxf(sqrtf(*each), 1e-12f);
    }
    for (int64_t k = 0; k < size; k++) x[k] *= sum;
}

/* by the logarithm: a sigmoid too small for a float may have a root of any size */
static void to_sigmoid_root(vec *x, int64_t size, float degree) {
    float *each = (float *)x;
    for (int64_t k = 0; k < size * LANES; k++)
        each[k] = expf((fminf(each[k], 0.0f) - log1pf(expf(-fabsf(each[k])))) / degree);
}

static void activate(vec *x, int64_t size, int64_t kind, float epsilon, float degree) {
    if (kind == NORMALIZED_ELU) to_normalized_elu(x, size, epsilon);
    if (kind == SOFTMAX) to_softmax(x, size);
    if (kind == UNIT) to_length(x, size, 1.0f);
    if (kind == ROOT2) to_length(x, size, 1.41421356f);
    if (kind == SIGMOID_ROOT) to_sigmoid_root(x, size, degree);
    for (int64_t k = 0; kind == SIGMOID && k < size; k++) x[k] = sigmoid_of(x[k]);
    for (int64_t k = 0; kind == TWICE_SIGMOID && k < size; k++) x[k] = 2.0f * sigmoid_of(x[k]);
}

#define PARTS 8   /* most numbers, or vectors of them, that a slow net emits for a head */
#define WEIGHTS 29 /* of a layer: 12 of the backbone in the order of their use, 2 around the memory, 7 of it, 4 of each gate */
#define STATES 4

/* what the generalised delta rule is fed: see the memories in cores/ */
enum { KDA, GATED_DELTA_2, DELTA_PRODUCT, RWKV_7 };
enum { NO_GATE, SILU_GATE, SIGMOID_GATE };

/* A layer of the backbone: its shell, the same for all, and its memory. */
typedef struct {
    int64_t inputs, clock, d, ff, heads, layers; /* inputs: with the cosines and sines of `clock` phases of the time */
    int64_t gates;                               /* whether gates stand in place of the residual sums */
    int64_t parts, states;
    int64_t sizes[PARTS], activations[PARTS], state_sizes[STATES];
    /* steps and number of parts that are convolved (the last state); the output gate (the last part); for the generalised
     * rule the memory, the writes of a step, and the input width, per head, of the projections to rates */
    int64_t steps, convolved, gate, memory, writes, rank;
    int64_t window, kernel; /* of attention: steps it looks back on, and how scores become weights, as attention.c has it */
    float eps, epsilon, root_degree, head_eps; /* of LayerNorm, NORMALIZED_ELU, SIGMOID_ROOT; of a head's norm, 0 for none */
    delta_rule *delta;                         /* those that the memory has, else NULL */
    gated_rule *gated;
    momentum_rule *momentum;
    delta_rnn_rule *delta_rnn;
    recurrent_delta_rule *recurrent_delta;
    generalised_rule *generalised;
    attention_rule *attention;
    attention_size *attention_room;
} backbone;

/* log(1 + exp(x)), from |x|; log(1 + y) = 2 artanh(y / (2 + y)) for y up to 1, by its series */
static vec softplus_of(vec x) {
    const vec y = exponential(negative(x)), s = y / (2.0f + y), z = s * s;
    vec sum = z * (1.0f / 17.0f) + 1.0f / 15.0f;
    sum = sum * z + 1.0f / 13.0f;
    sum = sum * z + 1.0f / 11.0f;
    sum = sum * z + 1.0f / 9.0f;
    sum = sum * z + 1.0f / 7.0f;
    sum = sum * z + 1.0f / 5.0f;
    sum = sum * z + 1.0f / 3.0f;
    return choose(x > 0.0f, x, (vec){0}) + 2.0f * s * (sum * z + 1.0f);
}

/* Copy part i of every head of each row's numbers, `width` of a head from panels of heads * width, to panels of their own. */
static void take_part(vec *to, const vec *numbers, const backbone *s, int64_t width, int64_t i, int64_t P) {
    int64_t at = 0;
    for (int64_t j = 0; j < i; j++) at += s->sizes[j];
    for (int64_t head = 0; head < P * s->heads; head++)
        memcpy(to + head * s->sizes[i], numbers + head * width + at, s->sizes[i] * sizeof(vec));
}

/* exp(-exp(A) softplus(x + b)), A of a head, b of each of its `size` numbers */
static void to_decay(vec *x, const float *A, const float *b, int64_t heads, int64_t size, int64_t P) {
    for (int64_t p = 0; p < P; p++)
        for (int64_t k = 0; k < heads * size; k++)
            x[p * heads * size + k] = exponential(-expf(A[k / size]) * softplus_of(x[p * heads * size + k] + b[k]));
}

/* Convolve the first parts of all heads over the last steps, which `before` has [rows, steps - 1, channels], as `after`. */
static void convolve(
    vec *numbers, const backbone *s, int64_t width, const float *weight, const bool *reset, const float *before, float *after,
    int64_t rows
) {
    int64_t size = 0;
    for (int64_t i = 0; i < s->convolved; i++) size += s->sizes[i];
    const int64_t P = panels(rows), channels = s->heads * size, older = s->steps - 1;
    vec last[P * (older ? older * channels : 1)];
    gather(last, before, rows, older * channels);
    clear(last, reset, rows, older * channels);
    for (int64_t p = 0; p < P; p++)
        for (int64_t c = 0; c < channels; c++) {
            vec *now = numbers + (p * s->heads + c / size) * width + c % size, *past = last + p * older * channels + c;
            vec sum = weight[c] * *now;
            for (int64_t age = 1; age <= older; age++) sum += weight[age * channels + c] * past[(older - age) * channels];
            for (int64_t i = 0; i + 1 < older; i++) past[i * channels] = past[(i + 1) * channels];
            if (older) past[(older - 1) * channels] = *now;
            *now = sum * sigmoid_of(sum);
        }
    scatter(after, last, rows, older * channels);
}

/* Divide what each head reads by its root mean square, and multiply by its gate. */
static void norm_and_gate(vec *y, const vec *numbers, const backbone *s, int64_t width, const float *scale, int64_t P) {
    const int64_t size = s->d / s->heads;
    for (int64_t head = 0; head < P * s->heads; head++) {
        vec *of_head = y + head * size, squares = {0};
        if (s->head_eps > 0.0f) {
            for (int64_t j = 0; j < size; j++) squares += of_head[j] * of_head[j];
            for (int64_t j = 0; j < LANES; j++) {
                float *each = (float *)&squares + j;
                *each = 1.0f / sqrtf(*each / size + s->head_eps);
            }
            for (int64_t j = 0; j < size; j++) of_head[j] *= squares * scale[j];
        }
        const vec *gate = numbers + (head + 1) * width - size;
        for (int64_t j = 0; s->gate != NO_GATE && j < size; j++) {
            of_head[j] *= sigmoid_of(gate[j]);
            if (s->gate == SILU_GATE) of_head[j] *= gate[j];
        }
    }
}

/* A GRU's gate in place of the sum of stream and y: weights of y's share of r, z and the candidate [3 d, d], of the stream's
 * of r and z [2 d, d], of the candidate's [d, d], and z's bias. */
static void pass_gate(vec *stream, const vec *y, const float *const *w, int64_t rows, int64_t d) {
    const int64_t P = panels(rows);
    vec of_y[P * 3 * d], of_x[P * 2 * d], reset[P * d], candidate[P * d];
    product(of_y, y, (affine){w[0], 0}, rows, d, 3 * d, false, false);
    product(of_x, stream, (affine){w[1], 0}, rows, d, 2 * d, false, false);
    for (int64_t p = 0; p < P; p++)
        for (int64_t k = 0; k < d; k++)
            reset[p * d + k] = stream[p * d + k] * sigmoid_of(of_y[p * 3 * d + k] + of_x[p * 2 * d + k]);
    product(candidate, reset, (affine){w[2], 0}, rows, d, d, false, false);
    for (int64_t p = 0; p < P; p++)
        for (int64_t k = 0; k < d; k++) {
            const vec *a = of_y + p * 3 * d + k, *b = of_x + p * 2 * d + k, now = stream[p * d + k];
            const vec z = sigmoid_of(a[d] + b[d] - w[3][k]);
            stream[p * d + k] = now + z * (tanh_of(a[2 * d] + candidate[p * d + k]) - now);
        }
}

/* Copy rows of x and add the cosines and sines of the time in the episode, with periods of 4, 8, 16, ... steps. */
static void add_time(
    float *to, const float *x, int64_t rows, int64_t inputs, int64_t clock, const bool *reset, const float *before,
    float *after
) {
    const int64_t given = inputs - 2 * clock;
    for (int64_t b = 0; b < rows; b++, to += inputs) {
        const float time = reset[b] ? 0.0f : before[b];
        memcpy(to, x + b * given, given * sizeof(float));
        for (int64_t i = 0; i < clock; i++) {
            const float period = (float)(1 << (i + 2)), phase = 6.28318531f * fmodf(time, period) / period;
            to[given + i] = cosf(phase), to[given + clock + i] = sinf(phase);
        }
        after[b] = time + 1.0f;
    }
}

/* What a learner needs not compute again, all steps of an unroll, each [layers, steps, rows, its size]: the stream
 * before each layer (and, last, after all layers), and inside the feedforward sub-layer its input and its hidden numbers;
 * for each layer what its slow net emits; of recurrent_delta also y and what it stores for backward, else NULL. Step t
 * goes there. */
typedef struct {
    float *stream, *middle, *hidden, *const *projected, *y, *g, *q_used, *k_used, *beta_used, *error;
    int64_t steps, t;
} forward_cache;

/* What the generalised delta rule is fed, by rows: its keys, values, erase vectors and decays [rows, heads, writes, size].
 * `rates` [2, rows, d]: decays by channel and, of RWKV-7, learning rates. */
static void feed(
    const backbone *s, int64_t rows, const strided *part, const float *const *slow, const float *rates, float *k, float *u,
    float *e, float *decay
) {
    const int64_t size = s->d / s->heads, n = s->writes;
    for (int64_t b = 0; b < rows; b++)
        for (int64_t h = 0; h < s->heads; h++) {
            const float *of[PARTS], *a = rates + b * s->d + h * size, *rate = a + rows * s->d;
            for (int64_t i = 0; i < s->parts; i++) of[i] = part[i].at + b * part[i].b + h * part[i].h;
            const int64_t at = (b * s->heads + h) * n * size;
            float squares = 0.0f;
            for (int64_t j = 0; s->memory == RWKV_7 && j < size; j++) {
                const float removal = of[1][j] * slow[4][h * size + j];
                squares += removal * removal;
            }
            const float length = fmaxf(sqrtf(squares), 1e-12f);
            for (int64_t i = 0; i < n; i++)
                for (int64_t j = 0; j < size; j++) {
                    const int64_t to = at + i * size + j, from = i * size + j;
                    const float key = of[1][s->memory == RWKV_7 ? j : from], value = of[2][s->memory == RWKV_7 ? j : from];
                    if (s->memory == RWKV_7) {
                        const float removal = key * slow[4][h * size + j] / length;
                        k[to] = i ? key * (1.0f + (rate[j] - 1.0f) * slow[5][h * size + j]) : rate[j] * removal;
                        u[to] = i ? value : 0.0f;
                        e[to] = i ? 0.0f : removal / a[j];
                    } else {
                        const bool by_channel = s->memory == GATED_DELTA_2;
                        k[to] = key;
                        e[to] = key * (by_channel ? of[3][j] : of[3][i]);
                        u[to] = value * (by_channel ? of[4][j] : of[3][i]);
                    }
                    decay[to] = i ? 1.0f : a[j];
                }
        }
}

/* RWKV-7's share of the output that goes past its memory: (r · ρ ⊙ k) v, k the second write's. */
static void add_direct(const backbone *s, int64_t rows, const strided *part, const float *rho, const float *k, float *y) {
    const int64_t size = s->d / s->heads;
    for (int64_t b = 0; b < rows; b++)
        for (int64_t h = 0; h < s->heads; h++) {
            const int64_t at = (b * s->heads + h) * size;
            const float *r = part[0].at + b * part[0].b + h * part[0].h, *v = part[2].at + b * part[2].b + h * part[2].h;
            float match = 0.0f;
            for (int64_t j = 0; j < size; j++) match += r[j] * rho[h * size + j] * k[2 * at + size + j];
            for (int64_t j = 0; j < size; j++) y[at + j] += match * v[j];
        }
}

static void step_generalised(
    const backbone *s, const span *rows, const strided *part, const float *const *slow, const float *rates,
    const float *before, float *after, float *y
) {
    const int64_t size = s->d / s->heads, n = s->writes, each = rows->B * s->d * n;
    float k[each], u[each], e[each], decay[each];
    feed(s, rows->B, part, slow, rates, k, u, e, decay);
    const int64_t of_row = s->d * n, of_head = size * n;
    span now = *rows;
    now.writes = n;
    s->generalised(
        &now, part[0], (strided){k, 0, of_row, of_head}, (strided){u, 0, of_row, of_head}, (strided){e, 0, of_row, of_head},
        (strided){decay, 0, of_row, of_head}, before, y, after, 0
    );
    if (s->memory == RWKV_7) add_direct(s, rows->B, part, slow[6], k, y);
}

/* The rates of channels [2, rows, d] of the generalised delta rule, from the numbers of all heads. */
static void find_rates(
    float *rates, const vec *numbers, const backbone *s, int64_t width, const float *const *slow, int64_t rows
) {
    const int64_t P = panels(rows), few = s->heads * s->rank, size = s->d / s->heads;
    const int64_t last = s->parts - 1 - (s->gate != NO_GATE);
    vec low[P * (few ? few : 1)], wide[P * s->d];
    for (int64_t k = 0; k < P * s->d; k++) wide[k] = (vec){0} + 1.0f;
    if (s->memory == RWKV_7) {
        for (int64_t which = 0; which < 2; which++) {
            take_part(low, numbers, s, width, 3 + which, P);
            for (int64_t k = 0; which == 0 && k < P * few; k++) low[k] = tanh_of(low[k]);
            product(wide, low, (affine){slow[2 * which], slow[2 * which + 1]}, rows, few, s->d, false, false);
            for (int64_t k = 0; k < P * s->d; k++) {
                wide[k] = sigmoid_of(wide[k]);
                if (which == 0) wide[k] = exponential(-0.60653066f * wide[k]);
            }
            scatter(rates + which * rows * s->d, wide, rows, s->d);
        }
        return;
    }
    if (s->memory == DELTA_PRODUCT && slow[1]) {
        take_part(low, numbers, s, width, last, P);
        to_decay(low, slow[1], slow[2], s->heads, 1, P);
        for (int64_t k = 0; k < P * s->d; k++) wide[k] = low[k / size];
    } else if (s->memory != DELTA_PRODUCT) {
        take_part(low, numbers, s, width, last, P);
        product(wide, low, (affine){slow[0], 0}, rows, few, s->d, false, false);
        to_decay(wide, slow[1], slow[2], s->heads, size, P);
    }
    scatter(rates, wide, rows, s->d);
}

/* Attention to a window. `slow` has, NULL where the memory lacks it: what is added to the queries of scores by content
 * [heads, size]; keys of ages [heads, size, window], from one step ago on; what is added to the queries of scores by age; and
 * scores by age that are the same for all queries [heads, window]. */
static void step_attention(
    const backbone *s, const span *rows, const strided *part, const float *const *slow, const float *const *before,
    float *const *after, float *y
) {
    const int64_t size = s->d / s->heads, M = s->window, heads = rows->B * s->heads;
    const window w = {*rows, M, 1, s->kernel, s->kernel, 1};
    const float scale = 1.0f / sqrtf((float)size), one = 1.0f;
    const bool gated = s->parts - (s->gate != NO_GATE) == 4;
    strided q = part[0], bias = {slow[3], 0, 0, M}, decay = gated ? part[3] : (strided){&one, 0, 0, 0};
    float queries[slow[1] ? heads * size : 1], by_age[slow[1] ? heads * M : 1];
    for (int64_t head = 0; slow[1] && head < heads; head++) {
        const int64_t h = head % s->heads;
        const float *from = q.at + head / s->heads * q.b + h * q.h;
        float *scores = by_age + head * M;
        memset(scores, 0, M * sizeof(float));
        for (int64_t d = 0; d < size; d++) {
            const int64_t at = h * size + d;
            const float *ages = slow[1] + at * M, factor = scale * (from[d] + slow[2][at]);
            queries[head * size + d] = from[d] + slow[0][at];
            for (int64_t j = 0; j < M; j++) scores[j] += factor * ages[j];
        }
    }
    if (slow[1]) q = (strided){queries, 0, s->d, size}, bias = (strided){by_age, 0, s->heads * M, M};
    enum { LONGEST = 64 }; /* bytes of a vector, of which attention.c may have longer ones */
    char scratch[s->attention_room(&w) * sizeof(float) + LONGEST];
    float *aligned = (float *)(((uintptr_t)scratch + LONGEST - 1) & ~(uintptr_t)(LONGEST - 1));
    s->attention(
        &w, q, part[1], part[2], decay, bias, before[0], before[1], before[2], y, after[0], after[1], after[2], 0, 0, aligned
    );
}

/* The memory of some rows: `projected` [rows, heads, sum of sizes], `before` and `after` the rows' shares of the state. */
static void run_rule(
    const backbone *s, const span *rows, const float *projected, const float *rates, const float *const *slow,
    const float *const *before, float *const *after, float *y, const forward_cache *k, int64_t at
) {
    strided part[PARTS] = {{0}};
    int64_t width = 0;
    for (int64_t i = 0; i < s->parts; i++) {
        part[i] = (strided){projected + width, 0, 0, 0};
        width += s->sizes[i];
    }
    for (int64_t i = 0; i < s->parts; i++) part[i].b = s->heads * width, part[i].h = width;
    if (s->gate != NO_GATE) part[s->parts - 1] = (strided){0}; /* no part of the rule's */
    if (s->recurrent_delta) {
        if (k && !k->g) k = 0; /* without g the others are not stored */
        float *const g = k ? k->g + at * s->d : 0;
        s->recurrent_delta(
            rows, part[0], part[1], part[2], part[3], slow[0], slow[1], slow[2], slow[3], before[0], before[1],
            after[1], after[0], g, k ? k->q_used + at * s->d : 0, k ? k->k_used + at * s->d : 0,
            k ? k->beta_used + at * s->heads : 0, k ? k->error + at * s->d : 0
        );
        memcpy(y, after[1], rows->B * s->d * sizeof(float));
        if (k) memcpy(k->y + at * s->d, y, rows->B * s->d * sizeof(float));
    } else if (s->delta_rnn) {
        s->delta(rows, part[0], part[1], part[2], part[5], before[0], y, after[0], 0);
        const strided z = {y, 0, s->d, s->d / s->heads};
        s->delta_rnn(rows, z, part[3], part[4], part[6], before[1], before[2], after[2], after[1], 0, 0);
        memcpy(y, after[2], rows->B * s->d * sizeof(float));
    } else if (s->attention) {
        step_attention(s, rows, part, slow, before, after, y);
    } else if (s->generalised) {
        step_generalised(s, rows, part, slow, rates, before[0], after[0], y);
    } else if (s->momentum) {
        const float none = 1.0f;
        const strided decay = {&none, 0, 0, 0};
        s->momentum(rows, part[0], part[1], part[2], part[3], decay, part[4], before[0], before[1], y, after[0], after[1], 0);
    } else if (s->gated && s->parts - (s->gate != NO_GATE) == 5) {
        s->gated(rows, part[0], part[1], part[2], part[3], part[4], before[0], y, after[0], 0);
    } else if (s->gated) { /* without a write strength each row has its decay: the same for all of a head's here */
        const int64_t size = s->d / s->heads;
        float decays[rows->B * s->d];
        for (int64_t b = 0; b < rows->B; b++)
            for (int64_t h = 0; h < s->heads; h++)
                for (int64_t j = 0; j < size; j++)
                    decays[b * s->d + h * size + j] = part[3].at[b * part[3].b + h * part[3].h];
        const strided decay = {decays, 0, s->d, size};
        s->gated(rows, part[0], part[1], part[2], (strided){0}, decay, before[0], y, after[0], 0);
    } else {
        s->delta(rows, part[0], part[1], part[2], part[3], before[0], y, after[0], 0);
    }
}

/* One step of all layers: x [rows, inputs - 2 clock], y [rows, d]; of each layer STATES pointers to its state [rows, their
 * size] each, before and after it, and one to the time [rows]. */
void backbone_step(
    int64_t threads, int64_t rows, const backbone *layers, const float *x, const bool *reset, const float *const *weights,
    const float *const *state, float *const *next, float *y, const forward_cache *k
) {
    const int64_t d = layers->d, ff = layers->ff, heads = layers->heads, count = layers->layers;
    const int64_t inputs = layers->inputs, clock = layers->clock, given = inputs - 2 * clock;
    int64_t widths[count], widest = ff > d ? ff : d;
    for (int64_t layer = 0; layer < count; layer++) {
        widths[layer] = 0;
        for (int64_t i = 0; i < layers[layer].parts; i++) widths[layer] += layers[layer].sizes[i];
        if (heads * widths[layer] > widest) widest = heads * widths[layer];
    }
    const int64_t block = block_rows(rows, threads);
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t row = 0; row < rows; row += block) {
        const int64_t some = least(block, rows - row), P = panels(some);
        const span part = {1, some, heads, d / heads, d / heads, 1, reset + row, 1};
        vec stream[P * d], in[P * (inputs > d ? inputs : d)], wide[P * widest];
        float by_row[some * widest], read[some * d], rates[2 * some * d], timed[clock ? some * inputs : 1];
        const float *seen = x + row * given;
        if (clock) {
            const int64_t last = count * STATES;
            add_time(timed, seen, some, inputs, clock, part.reset, state[last] + row, next[last] + row);
        }
        gather(in, clock ? timed : seen, some, inputs);
        product(stream, in, (affine){weights[0], weights[1]}, some, inputs, d, false, false);
        for (int64_t layer = 0; layer < count; layer++) {
            const backbone *s = layers + layer;
            const int64_t width = widths[layer], projected = heads * width;
            const float *const *w = weights + 2 + layer * WEIGHTS, *before[STATES];
            float *after[STATES];
            for (int64_t i = 0; i < s->states; i++) {
                const int64_t at = row * s->state_sizes[i];
                before[i] = state[layer * STATES + i] + at, after[i] = next[layer * STATES + i] + at;
            }
            const int64_t at = k ? (layer * k->steps + k->t) * rows + row : 0;
            if (k) scatter(k->stream + at * d, stream, some, d);
            normalize(in, stream, (affine){w[0], w[1]}, s->eps, some, d);
            product(wide, in, (affine){w[2], w[3]}, some, d, projected, false, false);
            if (k) scatter(k->projected[layer] + (k->t * rows + row) * projected, wide, some, projected);
            if (s->steps) {
                const int64_t last = s->states - 1;
                convolve(wide, s, width, w[12], reset + row, before[last], after[last], some);
            }
            if (s->generalised) find_rates(rates, wide, s, width, w + 14, some);
            vec *numbers = wide;
            for (int64_t i = 0; i < P * heads * s->parts; i++) {
                const int64_t size = s->sizes[i % s->parts], kind = s->activations[i % s->parts];
                const int64_t of_one = kind == UNIT ? d / heads : size; /* each of several keys has a length */
                for (int64_t j = 0; j < size; j += of_one) activate(numbers + j, of_one, kind, s->epsilon, s->root_degree);
                numbers += size;
            }
            scatter(by_row, wide, some, projected);
            run_rule(s, &part, by_row, rates, w + 14, before, after, read, k, at);
            gather(in, read, some, d);
            if (s->head_eps > 0.0f || s->gate != NO_GATE) norm_and_gate(in, wide, s, width, w[13], P);
            product(s->gates ? wide : stream, in, (affine){w[4], w[5]}, some, d, d, !s->gates, s->gates);
            if (s->gates) pass_gate(stream, wide, w + 21, some, d);
            if (k) scatter(k->middle + at * d, stream, some, d);
            normalize(in, stream, (affine){w[6], w[7]}, s->eps, some, d);
            product(wide, in, (affine){w[8], w[9]}, some, d, ff, false, true);
            if (k) scatter(k->hidden + at * ff, wide, some, ff);
            product(s->gates ? in : stream, wide, (affine){w[10], w[11]}, some, ff, d, !s->gates, s->gates);
            if (s->gates) pass_gate(stream, in, w + 25, some, d);
        }
        if (k) scatter(k->stream + ((count * k->steps + k->t) * rows + row) * d, stream, some, d);
        scatter(y + row * d, stream, some, d);
    }
}

/* ---- a whole agent ---- */

/* A core's step t of an unroll, from x and reset to its output [rows, its size]. */
typedef const float *core_step(const void *core, int64_t threads, int64_t rows, int64_t t, const float *x, const bool *reset);

/* The LSTM's: sizes and weights as in lstm_step, the state [rows, N] before the unroll, room for h, c and what backward needs
 * [steps, rows, N]. lstm.py has the same structure. */
typedef struct {
    int64_t K, N;
    const float *w_x, *w_h, *b_x, *b_h, *h0, *c0;
    float *h, *c, *hs;
    vec *saved_gates;
} lstm_steps;

const float *lstm_core(const void *core, int64_t threads, int64_t rows, int64_t t, const float *x, const bool *reset) {
    const lstm_steps *s = core;
    const int64_t size = rows * s->N, now = t * size;
    lstm_step(
        threads, rows, s->K, s->N, t, x, s->w_x, s->w_h, s->b_x, s->b_h, t ? s->h + now - size : s->h0,
        t ? s->c + now - size : s->c0, reset, s->h + now, s->c + now, s->hs, s->saved_gates
    );
    return s->h + now;
}

/* The backbone's: its layers, their weights, the state before the unroll, room for it after step 0, 2, ... and after 1, 3,
 * ..., as in backbone_step, and for what a learner needs. backbone.py has the same structure. */
typedef struct {
    const backbone *layers;
    const float *const *weights, *const *first;
    float *const *even, *const *odd;
    const forward_cache *k;
} backbone_steps;

const float *backbone_core(const void *core, int64_t threads, int64_t rows, int64_t t, const float *x, const bool *reset) {
    const backbone_steps *a = core;
    const float *const *before = t == 0 ? a->first : (const float *const *)(t % 2 ? a->even : a->odd);
    forward_cache now = *a->k;
    now.t = t;
    float *y = now.stream + (a->layers->layers * now.steps + t) * rows * a->layers->d;
    backbone_step(threads, rows, a->layers, x, reset, a->weights, before, t % 2 ? a->odd : a->even, y, &now);
    return y;
}

/* An agent that observes vectors, and an unroll: observations [steps, rows, observed], through two rectified layers of
 * `hidden` and `features` outputs to the core, whose output of `out` numbers the heads read. The pointers are as for the
 * functions above; what belongs to a step has one entry a step. acting.py has the same structure. */
typedef struct {
    int64_t threads, rows, observed, hidden, features, out, actions;
    float limit;
    core_step *step;
    const void *core;
    const float *w1, *b1, *w2, *b2, *w_p, *b_p, *w_v, *b_v;
    const float *observation, *reward;
    const bool *done;
    const float *exp_noise;
    float *projection, *logits;
    int64_t *action;
    float *between, *x, *value; /* of one step */
} agent;

/* Step the core at step t. */
const float *observe(const agent *a, int64_t t) {
    const int64_t rows = a->rows, at = t * rows, threads = a->threads;
    const float *seen = a->observation + at * a->observed;
    linear(threads, rows, a->observed, a->hidden, true, seen, a->w1, a->b1, a->between);
    core_input(
        threads, rows, a->hidden, a->features, 0.0f, a->limit, a->between, a->w2, a->b2, 0, 0, a->reward + at,
        a->projection ? a->projection + at * a->features : 0, a->x
    );
    return a->step(a->core, threads, rows, t, a->x, a->done + at);
}

/* Observe step t, and act. */
void act(const agent *a, int64_t t) {
    const int64_t at = t * a->rows;
    const float *y = observe(a, t);
    heads(
        a->threads, a->rows, a->out, a->actions, y, a->w_p, a->b_p, a->w_v, a->b_v, a->exp_noise + at * a->actions,
        a->logits + at * a->actions, a->value, a->action + at
    );
}
