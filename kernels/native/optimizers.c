/* The optimizers' steps in one pass over memory. optimizers.py documents them. RMSProp's operations are rounded as torch's, but
 * for the square root, which is exact here; Adam's corrections come in float64. */

#include <math.h>
#include <stdint.h>

/* settings: α, 1 - α, ε, the negative learning rate, and the factor of the gradients */
void rmsprop(
    int64_t threads, int64_t size, const float *settings, float *restrict parameter, const float *restrict gradient,
    float *restrict square
) {
    const float keep = settings[0], add = settings[1], eps = settings[2], rate = settings[3], scale = settings[4];
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < size; i++) {
        const float g = scale * gradient[i];
        const float s = fmaf(add * g, g, square[i] * keep);
        square[i] = s;
        parameter[i] += rate * g / (sqrtf(s) + eps);
    }
}

/* settings: β1, 1 - β1, β2, 1 - β2, ε, the negative learning rate divided by 1 - β1^t, √(1 - β2^t), and the factor of
 * the gradients */
void adam(
    int64_t threads, int64_t size, const float *settings, float *restrict parameter, const float *restrict gradient,
    float *restrict mean, float *restrict square
) {
    const float keep1 = settings[0], add1 = settings[1], keep2 = settings[2], add2 = settings[3];
    const float eps = settings[4], rate = settings[5], root = settings[6], scale = settings[7];
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < size; i++) {
        const float g = scale * gradient[i];
        const float m = fmaf(add1, g, mean[i] * keep1);
        const float s = fmaf(add2 * g, g, square[i] * keep2);
        mean[i] = m;
        square[i] = s;
        parameter[i] = fmaf(m / (sqrtf(s) / root + eps), rate, parameter[i]);
    }
}
