/* Winograd's minimal filtering in one dimension (Winograd 1980; Lavin and Gray 2015): `outputs` sums of R = 7 - outputs
 * neighbours each, from S products. Polynomials are multiplied by their values at 0, points of either sign, and
 * infinity. In two dimensions y = A^T [(G g G^T) * (B^T x B)] A: transform_input is B^T, transform_weight G,
 * transform_output A^T, and the adjoints are their transposes. Elements of x and y are `from` and `to` apart. */

#include "vectors.h"

#define S 6 /* points: the side of a transformed tile */

/* Points that are each other's reciprocals: a third of the error of 1 and 2. */
#define NEAR (2.0 / 3)
#define FAR 1.5
#define POWER2(p) ((float)((p) * (p)))
#define POWER3(p) ((float)((p) * (p) * (p)))
#define POWER4(p) ((float)((p) * (p) * (p) * (p)))
#define BOTH ((float)(NEAR * NEAR * FAR * FAR))
#define SUM ((float)(NEAR * NEAR + FAR * FAR))
#define AT_NEAR(p) ((float)((p) / (2 * NEAR * NEAR * (NEAR * NEAR - FAR * FAR))))
#define AT_FAR(p) ((float)((p) / (2 * FAR * FAR * (FAR * FAR - NEAR * NEAR))))

INLINE void transform_input(vec *y, int64_t to, const vec *x, int64_t from) {
    const vec a = x[0], b = x[from], c = x[2 * from], d = x[3 * from], e = x[4 * from], f = x[5 * from];
    const vec p = e - POWER2(FAR) * c, q = (float)NEAR * (d - POWER2(FAR) * b);
    const vec r = e - POWER2(NEAR) * c, s = (float)FAR * (d - POWER2(NEAR) * b);
    y[0] = BOTH * a + (e - SUM * c), y[5 * to] = BOTH * b + (f - SUM * d);
    y[to] = p + q, y[2 * to] = p - q, y[3 * to] = r + s, y[4 * to] = r - s;
}

INLINE void adjoint_input(vec *y, int64_t to, const vec *x, int64_t from) {
    const vec p = x[from] + x[2 * from], q = x[from] - x[2 * from];
    const vec r = x[3 * from] + x[4 * from], s = x[3 * from] - x[4 * from];
    y[0] = BOTH * x[0], y[5 * to] = x[5 * from];
    y[to] = BOTH * x[5 * from] - (float)(NEAR * FAR * FAR) * q - (float)(FAR * NEAR * NEAR) * s;
    y[2 * to] = -SUM * x[0] - POWER2(FAR) * p - POWER2(NEAR) * r;
    y[3 * to] = -SUM * x[5 * from] + (float)NEAR * q + (float)FAR * s;
    y[4 * to] = x[0] + (p + r);
}

/* R weights */
INLINE void transform_weight(vec *y, int64_t to, const vec *x, int64_t from, int R) {
    const vec a = x[0], b = x[from], c = R == 3 ? x[2 * from] : (vec){0};
    const vec p = AT_NEAR(1) * a + AT_NEAR(NEAR * NEAR) * c, q = AT_NEAR(NEAR) * b;
    const vec r = AT_FAR(1) * a + AT_FAR(FAR * FAR) * c, s = AT_FAR(FAR) * b;
    y[0] = 1.0f / BOTH * a, y[5 * to] = R == 3 ? c : b;
    y[to] = p + q, y[2 * to] = p - q, y[3 * to] = r + s, y[4 * to] = r - s;
}

INLINE void adjoint_weight(vec *y, int64_t to, const vec *x, int64_t from, int R) {
    const vec p = x[from] + x[2 * from], q = x[from] - x[2 * from];
    const vec r = x[3 * from] + x[4 * from], s = x[3 * from] - x[4 * from];
    y[0] = 1.0f / BOTH * x[0] + (AT_NEAR(1) * p + AT_FAR(1) * r);
    y[to] = AT_NEAR(NEAR) * q + AT_FAR(FAR) * s;
    if (R == 3) y[2 * to] = AT_NEAR(NEAR * NEAR) * p + AT_FAR(FAR * FAR) * r + x[5 * from];
    else y[to] += x[5 * from];
}

/* 4 or 5 outputs */
INLINE void transform_output(vec *y, int64_t to, const vec *x, int64_t from, int outputs) {
    const vec p = x[from] + x[2 * from], q = x[from] - x[2 * from];
    const vec r = x[3 * from] + x[4 * from], s = x[3 * from] - x[4 * from];
    y[0] = x[0] + (p + r), y[to] = (float)NEAR * q + (float)FAR * s;
    y[2 * to] = POWER2(NEAR) * p + POWER2(FAR) * r;
    if (outputs == 4) y[3 * to] = (POWER3(NEAR) * q + x[5 * from]) + POWER3(FAR) * s;
    else {
        y[3 * to] = POWER3(NEAR) * q + POWER3(FAR) * s;
        y[4 * to] = (POWER4(NEAR) * p + x[5 * from]) + POWER4(FAR) * r;
    }
}

INLINE void adjoint_output(vec *y, int64_t to, const vec *x, int64_t from, int outputs) {
    const vec a = x[0], b = x[from], c = x[2 * from], d = x[3 * from];
    vec p = a + POWER2(NEAR) * c, r = a + POWER2(FAR) * c;
    const vec q = (float)NEAR * b + POWER3(NEAR) * d, s = (float)FAR * b + POWER3(FAR) * d;
    y[0] = a, y[5 * to] = d;
    if (outputs == 5) {
        const vec e = y[5 * to] = x[4 * from];
        p += POWER4(NEAR) * e, r += POWER4(FAR) * e;
    }
    y[to] = p + q, y[2 * to] = p - q, y[3 * to] = r + s, y[4 * to] = r - s;
}

/* ---- what both sources need besides ---- */

INLINE int64_t least(int64_t a, int64_t b) { return a < b ? a : b; }

/* x where the condition holds for that of a rectifier: not at or below 0; a nan passes, as in torch */
INLINE vec where_positive(vec condition, vec x) { return (vec)(~(condition <= 0.0f) & (ints)x); }
