/* RMSProp's step in two passes over memory, before the square root and after it. rmsprop.py documents them. Each
 * operation is rounded as torch's. */

#include <math.h>
#include <stdint.h>

/* settings of both: α, 1 - α, ε and the negative learning rate */
void squares(
    int64_t threads, int64_t size, const float *settings, float *restrict square, const float *restrict gradient
) {
    const float keep = settings[0], add = settings[1];
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < size; i++) square[i] = fmaf(add * gradient[i], gradient[i], square[i] * keep);
}

void change(
    int64_t threads, int64_t size, const float *settings, float *restrict parameter, const float *restrict root,
    const float *restrict gradient
) {
    const float eps = settings[2], rate = settings[3];
#pragma omp parallel for num_threads(threads) if (threads > 1)
    for (int64_t i = 0; i < size; i++) parameter[i] += rate * gradient[i] / (root[i] + eps);
}
