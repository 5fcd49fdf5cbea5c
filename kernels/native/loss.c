/* The actor-critic loss with V-trace's targets, and its gradients, in a pass each. loss.py documents it. */

#include <math.h>
#include <stdbool.h>
#include <stdint.h>
#include <string.h>

/* from A logits to log of the sum of their exponentials */
static float log_sum(const float *logits, int64_t A) {
    float most = logits[0], sum = 0.0f;
    for (int64_t a = 1; a < A; a++) most = logits[a] > most ? logits[a] : most;
    for (int64_t a = 0; a < A; a++) sum += expf(logits[a] - most);
    return most + logf(sum);
}

/* From the last step to the first: advantages [T, B] and their weights in the policy's gradient, the values' gradients,
 * and what to log of them. The last row of dvalues [T + 1, B], which ends as zeros, holds v_{t+1} - V_{t+1} on the way. */
void vtrace(
    int64_t T, int64_t B, int64_t A, const float *settings, const float *logits, const float *values,
    const float *behavior, const int64_t *action, const float *reward, const bool *done, const bool *forced,
    float *advantages, float *weights, float *dvalues, float *metrics
) {
    const float discount = settings[0], baseline_cost = settings[1], rounding = settings[3], lambda = settings[4];
    double baseline = 0, kl = 0, rhos = 0, squares = 0;
    int64_t clipped = 0, all_forced = 0;
    float largest = 0;
    float *correction = dvalues + T * B;
    memset(correction, 0, B * sizeof(float));
    for (int64_t i = T * B - 1; i >= 0; i--) {
        const int64_t b = i % B, next = i + B, taken = action[i];
        const float *l = logits + i * A, V = values[i], chosen = forced[i] ? 0.0f : 1.0f;
        const float log_p = l[taken] - log_sum(l, A);
        const float log_rho = (log_p - (behavior[i * A + taken] - log_sum(behavior + i * A, A))) * chosen;
        const float rho = expf(log_rho), c = rho > 1.0f ? 1.0f : rho;
        const float r = reward[i], ahead = done[next] ? 0.0f : discount;
        advantages[i] = (r + ahead * (values[next] + lambda * correction[b]) - V) * chosen, weights[i] = c;
        correction[b] = c * (r + ahead * values[next] - V) + ahead * lambda * c * correction[b];
        dvalues[i] = -baseline_cost * correction[b];

        baseline += 0.5 * baseline_cost * correction[b] * correction[b];
        clipped += log_rho > rounding, all_forced += forced[i];
        kl += rho - 1.0f - log_rho, rhos += rho, squares += (double)rho * rho;
        largest = fabsf(log_rho) > largest ? fabsf(log_rho) : largest;
    }
    memset(correction, 0, B * sizeof(float));
    const double steps = T * B;
    metrics[2] = baseline, metrics[4] = clipped / steps, metrics[5] = largest, metrics[6] = all_forced / steps;
    metrics[7] = kl / steps, metrics[8] = rhos * rhos / (steps * squares);
}

/* The logits' gradients, and what remains to be logged. */
void policy(
    int64_t T, int64_t B, int64_t A, const float *settings, const float *logits, const int64_t *action,
    const bool *forced, const float *advantages, float *dlogits, float *metrics
) {
    const float entropy_cost = settings[2];
    double policy = 0, entropy = 0, entropy_of_chosen = 0;
    memset(dlogits + T * B * A, 0, B * A * sizeof(float));
    for (int64_t i = T * B - 1; i >= 0; i--) {
        const float *l = logits + i * A, chosen = forced[i] ? 0.0f : 1.0f, total = log_sum(l, A);
        float H = 0, *d = dlogits + i * A;
        for (int64_t a = 0; a < A; a++) H -= (d[a] = expf(l[a] - total)) * (l[a] - total);
        for (int64_t a = 0; a < A; a++) d[a] *= advantages[i] + entropy_cost * chosen * (l[a] - total + H);
        d[action[i]] -= advantages[i];

        policy -= (double)(l[action[i]] - total) * advantages[i];
        entropy += H, entropy_of_chosen += H * chosen;
    }
    metrics[0] = policy + metrics[2] - entropy_cost * entropy_of_chosen, metrics[1] = policy;
    metrics[3] = entropy / (T * B);
}
