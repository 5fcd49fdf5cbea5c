/* RMSProp's step in one pass over memory. rmsprop.py documents it. Each operation is rounded as torch's, but for the
 * square root, which is exact here. */

#include <math.h>
#include <stdint.h>

/* settings: α, 1 - α, ε, the negative learning rate, and the factor of the gradients */
void step(
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
