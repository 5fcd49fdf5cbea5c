/* The stems' work around convolutions on CPUs: bytes to floats and max-pooling, forward and backward. Memory bounds
 * it, so each is one pass. images.py documents the functions.
 *
 * Images are channels-last: C numbers per pixel, a multiple of LANES except where bytes come in.
 * Compiled once for float32 (-DBF16=0) and once for bfloat16, which is widened, computed on and rounded back. */

#include <math.h>
#include <stdint.h>
#include <string.h>

#define LANES 16
#define EACH(i) for (int i = 0; i < 2; i++)
#define INLINE static inline __attribute__((always_inline))
#define LITTLE (__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__)

typedef float vec __attribute__((vector_size(2 * LANES), may_alias));
typedef int32_t ints __attribute__((vector_size(2 * LANES)));
typedef uint32_t bits __attribute__((vector_size(2 * LANES)));
typedef vec group[2]; /* LANES numbers */

/* a where the mask is set, else b */
INLINE vec choose(ints mask, vec a, vec b) { return (vec)((mask & (ints)a) | (~mask & (ints)b)); }

#if BF16
typedef uint16_t number;
typedef bits loose __attribute__((aligned(2), may_alias));

/* Pairs are split into a register of first and one of second numbers: all operations are elementwise, so their
 * order does not matter as long as `store` undoes it. */
INLINE void load(vec *to, const number *x) {
    to[0] = (vec)(*(const loose *)x << 16);
    to[1] = (vec)(*(const loose *)x & 0xffff0000);
}

/* to nearest, ties to even; the low bits of a nan from bfloat16 are 0, so nothing carries */
INLINE bits rounded(vec x) { return (bits)x + 0x7fff + (((bits)x >> 16) & 1); }

/* to nearest, ties to even */
INLINE number narrow(float x) {
    uint32_t whole;
    memcpy(&whole, &x, sizeof whole);
    return (whole + 0x7fff + (whole >> 16 & 1)) >> 16;
}

INLINE void store(number *y, const vec *from) {
    *(loose *)y = (rounded(from[0]) >> 16) | (rounded(from[1]) & 0xffff0000);
}
#else
typedef float number;
typedef vec loose __attribute__((aligned(4), may_alias));

INLINE number narrow(float x) { return x; }
INLINE void load(vec *to, const number *x) { EACH(i) to[i] = ((const loose *)x)[i]; }
INLINE void store(number *y, const vec *from) { EACH(i) ((loose *)y)[i] = from[i]; }
#endif

#define TILE 64

/* [C, pixels] bytes -> [pixels, C], of the first `count` pixels, at most TILE */
INLINE void transpose(int64_t C, int64_t pixels, int64_t count, const uint8_t *from, uint8_t *to) {
    if (LITTLE && C == 4 && count == TILE) {
        uint32_t four[TILE];
        for (int j = 0; j < TILE; j++)
            four[j] = from[j] | from[pixels + j] << 8 | from[2 * pixels + j] << 16
                      | (uint32_t)from[3 * pixels + j] << 24;
        memcpy(to, four, sizeof four);
    } else
        for (int64_t c = 0; c < C; c++)
            for (int64_t j = 0; j < count; j++) to[j * C + c] = from[c * pixels + j];
}

/* [n, C, pixels] bytes -> [n, pixels, C] numbers: x / 255 or, given `shift`, (x - shift) factor clipped to
 * -limit..limit; shift and factor are [pixels, C]. Loops of known length become vectors. */
INLINE void to_numbers(int64_t n, int64_t C, int64_t pixels, int64_t threads, const uint8_t *x, const float *shift,
                       const float *factor, const float *limit, number *y) {
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < n; i++)
        for (int64_t p = 0; p < pixels; p += TILE) {
            const int64_t count = pixels - p < TILE ? pixels - p : TILE;
            number *to = y + (i * pixels + p) * C;
            uint8_t turned[TILE * C];
            transpose(C, pixels, count, x + i * C * pixels + p, turned);
            if (!shift)
                for (int64_t j = 0; j < count * C; j++) to[j] = narrow((float)turned[j] / 255.0f);
            else
                for (int64_t j = 0; j < count * C; j++) {
                    float z = ((float)turned[j] - shift[p * C + j]) * factor[p * C + j];
                    z = z > *limit ? *limit : z;
                    to[j] = narrow(z < -*limit ? -*limit : z);
                }
        }
}

void scale(int64_t n, int64_t C, int64_t pixels, int64_t threads, const uint8_t *x, number *y) {
    to_numbers(n, C, pixels, threads, x, NULL, NULL, NULL, y);
}

void standardise(int64_t n, int64_t C, int64_t pixels, int64_t threads, const uint8_t *x, const float *shift,
                 const float *factor, const float *limit, number *y) {
    to_numbers(n, C, pixels, threads, x, shift, factor, limit, y);
}

/* ---- pooling ----
 * Floats compare as their bits do, read as integers, once the bits of negative ones except the sign are inverted.
 * Subtracting BELOW, the number of nans below -inf, wraps those to the top, so that nan of either sign is above all numbers. */

#if BF16
typedef int16_t whole;
typedef uint16_t modular;
#define INFINITE 0x7f80
#else
typedef int32_t whole;
typedef uint32_t modular;
#define INFINITE 0x7f800000
#endif
/* Numbers compared at a time: vectors larger than registers would be taken apart, number by number. */
#if defined(__AVX512F__) || BF16
#define WIDTH 16
#else
#define WIDTH 8
#endif
#define LARGEST (INFINITE | (INFINITE - 1)) /* all bits but the sign */
#define BELOW (LARGEST - INFINITE)

typedef whole wholes __attribute__((vector_size(WIDTH * sizeof(whole))));
typedef modular modulars __attribute__((vector_size(WIDTH * sizeof(whole))));
typedef wholes loose_wholes __attribute__((aligned(2), may_alias));
typedef uint8_t places __attribute__((vector_size(WIDTH), aligned(1), may_alias));

INLINE wholes pick(wholes mask, wholes a, wholes b) { return (mask & a) | (~mask & b); }

INLINE wholes in_order(wholes x) { return x ^ ((x < 0) & LARGEST); }

INLINE wholes load_in_order(const number *x) {
    return (wholes)((modulars)in_order(*(const loose_wholes *)x) - BELOW);
}

INLINE void store_in_order(number *y, wholes x) { *(loose_wholes *)y = in_order((wholes)((modulars)x + BELOW)); }

typedef struct {
    wholes value, place;
} maximum;

/* the first of the largest, places being counted from 0 */
INLINE maximum largest(const number *x, int64_t stride, int first, int last) {
    maximum best = {load_in_order(x + first * stride), (wholes){0} + (whole)(first + 1)};
    for (int i = first + 1; i <= last; i++) {
        wholes value = load_in_order(x + i * stride), better = value > best.value;
        best.value = pick(better, value, best.value);
        best.place = pick(better, (wholes){0} + (whole)(i + 1), best.place);
    }
    return best;
}

INLINE maximum larger(maximum a, maximum b, int row) {
    wholes better = b.value > a.value;
    return (maximum){pick(better, b.value, a.value), pick(better, b.place + (whole)(3 * row), a.place)};
}

/* Maxima y over windows of 3 x 3 at stride 2. The first window is centred on the first pixel.
 * `which` is the maximum's place in its window, 0 to 8, the first of equal ones, 0 being more than -0; NULL if not
 * wanted. A window's last row is the first of the one below: its maxima are used again. */
void max_pool(
    int64_t n, int64_t H, int64_t W, int64_t C, int64_t threads, const number *x, number *y, uint8_t *which
) {
    const int64_t rows = (H + 1) / 2, columns = (W + 1) / 2, width = C / WIDTH;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t frame = 0; frame < n; frame++) {
        maximum maxima[columns * width];
        for (int64_t row = 0; row < rows; row++)
            for (int64_t j = 0; j < columns * width; j++) {
                const int64_t column = j / width, to = ((frame * rows + row) * columns * width + j) * WIDTH;
                const number *centre = x + ((frame * H + 2 * row) * W + 2 * column) * C + j % width * WIDTH;
                const int inside = column > 0 && 2 * column + 1 < W;
                const int left = column ? -1 : 0, right = 2 * column + 1 < W ? 1 : 0;
                maximum best = inside ? largest(centre, C, -1, 1) : largest(centre, C, left, right);
                if (row) best = larger(maxima[j], best, 1);
                else best.place += 3;
                if (2 * row + 1 < H) {
                    maxima[j] = inside ? largest(centre + W * C, C, -1, 1) : largest(centre + W * C, C, left, right);
                    best = larger(best, maxima[j], 2);
                }
                store_in_order(y + to, best.value);
                if (which) *(places *)(which + to) = __builtin_convertvector(best.place, places);
            }
    }
}

/* in the order of `load` */
INLINE void load_places(ints *to, const uint8_t *which) {
    typedef uint16_t shorts __attribute__((vector_size(LANES), aligned(1), may_alias));
    shorts two[2];
#if BF16
    two[0] = *(const shorts *)which & 0xff;
    two[1] = *(const shorts *)which >> 8;
#else /* via shorts: otherwise gcc 12 does not vectorize it */
    typedef uint16_t wide __attribute__((vector_size(2 * LANES), may_alias));
    typedef uint8_t narrow __attribute__((vector_size(LANES), aligned(1), may_alias));
    wide all = __builtin_convertvector(*(const narrow *)which, wide);
    memcpy(two, &all, sizeof two);
#endif
    EACH(i) to[i] = __builtin_convertvector(two[i], ints);
}

/* a row of windows in backward: gradients of the maxima, and their places, in the order of `load` */
typedef struct {
    group d;
    ints place[2];
} window;

INLINE void add_where(vec *sum, const window *w, int place) {
    EACH(i) sum[i] += choose(w->place[i] == place, w->d[i], (vec){0});
}

/* Gradients of a row of x, which is row `place` of the windows `now` and, unless that is NULL, row 2 of those
 * `above` it. Pixels under the middle of a window are in no other of its row; those between are in two. */
INLINE void gather(
    const window *above, const window *now, int place, int64_t W, int64_t columns, int64_t C, number *dx
) {
    const int64_t width = C / LANES; /* of a pixel */
    for (int64_t j = 0; j < columns * width; j++) {
        const int64_t column = j / width, to = 2 * column * C + j % width * LANES;
        group middle = {{0}}, between = {{0}};
        for (int i = 0; i < 2; i++) {
            const window *w = i ? now : above;
            const int row = i ? 3 * place : 6;
            if (!w) continue;
            add_where(middle, w + j, row + 1);
            add_where(between, w + j, row + 2);
            if (column + 1 < columns) add_where(between, w + j + width, row);
        }
        store(dx + to, middle);
        if (2 * column + 1 < W) store(dx + to + C, between);
    }
}

void max_pool_backward(
    int64_t n, int64_t H, int64_t W, int64_t C, int64_t threads, const number *dy, const uint8_t *which,
    number *dx
) {
    const int64_t rows = (H + 1) / 2, columns = (W + 1) / 2, size = columns * C;
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t frame = 0; frame < n; frame++) {
        window windows[2][size / LANES];
        for (int64_t row = 0; row <= rows; row++) {
            const int64_t at = (frame * rows + row) * size;
            window *now = row < rows ? windows[row % 2] : NULL, *above = row ? windows[(row + 1) % 2] : NULL;
            number *to = dx + (frame * H + 2 * row) * W * C;
            for (int64_t j = 0; now && j < size; j += LANES) {
                load(now[j / LANES].d, dy + at + j);
                load_places(now[j / LANES].place, which + at + j);
            }
            if (row && 2 * row - 1 < H) gather(above, now, 0, W, columns, C, to - W * C);
            if (now) gather(NULL, now, 1, W, columns, C, to);
        }
    }
}
