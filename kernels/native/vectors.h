/* Vectors of LANES floats, as many as fit a register unless the source says otherwise, and the functions that more
 * than one source takes of them. */

#include <stdint.h>
#include <string.h>

/* vectors larger than registers would be taken apart, number by number */
#ifdef __AVX512F__
#define REGISTER 16
#else
#define REGISTER 8
#endif
#ifndef LANES
#define LANES REGISTER
#endif
#if LANES == 16
#define ROUNDS 4
#define INDICES(i) i, 16 + i, 1 + i, 17 + i, 2 + i, 18 + i, 3 + i, 19 + i, \
    4 + i, 20 + i, 5 + i, 21 + i, 6 + i, 22 + i, 7 + i, 23 + i
#else
#define ROUNDS 3
#define INDICES(i) i, 8 + i, 1 + i, 9 + i, 2 + i, 10 + i, 3 + i, 11 + i
#endif
/* entries from, from + 1, ... of a and b in turns, LANES in all */
#ifdef __clang__
#define INTERLEAVE(a, b, from) __builtin_shufflevector(a, b, INDICES(from))
#else
#define INTERLEAVE(a, b, from) __builtin_shuffle(a, b, (ints){INDICES(from)})
#endif
#define INLINE static inline __attribute__((always_inline))

#ifdef _OPENMP
extern int omp_get_thread_num(void);
#else
#define omp_get_thread_num() 0
#endif

typedef float vec __attribute__((vector_size(4 * LANES), may_alias));
typedef float loose __attribute__((vector_size(4 * LANES), aligned(4), may_alias));
typedef int32_t ints __attribute__((vector_size(4 * LANES), may_alias));
typedef float half __attribute__((vector_size(32), may_alias));
typedef float quarter __attribute__((vector_size(16), may_alias));

/* a where the mask is set, else b */
INLINE vec choose(ints mask, vec a, vec b) { return (vec)((mask & (ints)a) | (~mask & (ints)b)); }

/* Transpose LANES vectors. Each round joins halves of pairs twice as far apart. */
INLINE void transpose_lanes(vec *a) {
    for (int round = 0; round < ROUNDS; round++) {
        vec b[LANES];
        for (int j = 0; j < LANES / 2; j++) {
            b[2 * j] = INTERLEAVE(a[j], a[j + LANES / 2], 0);
            b[2 * j + 1] = INTERLEAVE(a[j], a[j + LANES / 2], LANES / 2);
        }
        memcpy(a, b, sizeof b);
    }
}

INLINE float sum_lanes(vec x) {
    half a[LANES / 8];
    quarter b[2];
    memcpy(a, &x, sizeof a);
    if (LANES == 16) a[0] += a[LANES / 8 - 1];
    memcpy(b, a, sizeof b);
    b[0] += b[1];
    return (b[0][0] + b[0][2]) + (b[0][1] + b[0][3]);
}

/* Entries in turns of a and of b, each with half of the numbers to be summed. */
INLINE vec folded(vec a, vec b) { return INTERLEAVE(a, b, 0) + INTERLEAVE(a, b, LANES / 2); }

/* entry j is the sum of the numbers in a_j, of which a_j and a_{j + count} were folded; a is overwritten */
INLINE vec sums_of_folded(vec *a, int count) {
    for (int half = count / 2; half > 0; half /= 2)
        for (int j = 0; j < half; j++) a[j] = folded(a[j], a[j + half]);
    return a[0];
}

/* entry j is the sum of the numbers in a_j; a is overwritten */
INLINE vec sums(vec *a) { return sums_of_folded(a, LANES); }

/* From x <= 0 to exp(x) = (1 + rest) power, power = 2^n and |rest| < 1/2, by Cephes' polynomial; x >= -87. */
INLINE void split_exponential(vec x, vec *rest, vec *power) {
    const float shift = 12582912.0f; /* 1.5 * 2^23: adding it rounds to whole numbers */
    vec whole = (x * 1.44269504f + shift) - shift;
    whole = choose(whole < -126.0f, (vec){0} - 126.0f, whole);
    vec r = x - whole * 0.693359375f + whole * 2.12194440e-4f;
    vec p = r * 1.9875691500e-4f + 1.3981999507e-3f;
    p = p * r + 8.3334519073e-3f;
    p = p * r + 4.1665795894e-2f;
    p = p * r + 1.6666665459e-1f;
    p = p * r + 5.0000001201e-1f;
    *rest = p * r * r + r;
    *power = (vec)((__builtin_convertvector(whole, ints) + 127) << 23);
}

/* exp(x) for x <= 0, within 2 units in the last place; 0 below -87; nan stays nan */
INLINE vec exponential(vec x) {
    vec rest, power;
    split_exponential(x, &rest, &power);
    return choose(x < -87.0f, (vec){0}, (rest + 1.0f) * power);
}

/* -|x| */
INLINE vec negative(vec x) { return (vec)((ints)x | INT32_MIN); }

/* tanh(x), from exp(-2 |x|) - 1, which loses no digits near 0 and cannot overflow; nan stays nan */
INLINE vec tanh_of(vec x) {
    vec rest, power, down = -2.0f * (vec)((ints)x & INT32_MAX);
    split_exponential(down, &rest, &power);
    vec less_one = choose(down < -87.0f, (vec){0} - 1.0f, rest * power + (power - 1.0f));
    ints size = (ints)(less_one / (less_one + 2.0f)) & INT32_MAX;
    return (vec)(size | ((ints)x & INT32_MIN));
}

/* 1 / (1 + exp(-x)), from exp(-|x|), which cannot overflow */
INLINE vec sigmoid_of(vec x) {
    vec e = exponential(negative(x));
    return choose(x < 0.0f, e, (vec){0} + 1.0f) / (1.0f + e);
}
