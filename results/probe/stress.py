"""More elements than features: what DeltaFormer's kernels still exchange (Zhong et al. 2025, figure 5).

    python results/probe/stress.py [updates]

n elements stand in a row. Each has a fixed unit key of d = 64 numbers, all as nearly orthogonal as gradient
descent makes them; the values are one-hot. First the elements are written, then 2n swaps of two places, as in
the paper's theorem 1: a swap of i > j writes nothing under the key k_i - k_j. After every swap the first
place is read by its key, and a linear layer, the only thing that learns, says who stands there. κ is both
kernels: linear, or rounded to a whole number from -1 to 2.

The paper has d = 128 and n of 128 to 512. How keys and values are made, which places are swapped and read,
and the optimizer are our choice: the paper does not say.
"""

from __future__ import annotations

import argparse

import torch
import torch.nn.functional as F
from torch import Tensor, nn

D, BATCH, EVALUATED = 64, 4, 50
KERNELS = {"linear": lambda x: x, "round": lambda x: x.round().clamp(-1, 2)}


def nearly_orthogonal(n: int) -> Tensor:
    """Draw n unit vectors of d numbers and push the most similar ones apart."""
    if n <= D:
        return torch.linalg.qr(torch.randn(D, D))[0][:n]
    drawn = torch.randn(n, D, requires_grad=True)
    optimizer = torch.optim.Adam([drawn], lr=0.01)
    for step in range(2000):
        keys = F.normalize(drawn, dim=-1)
        overlaps = (keys @ keys.T - torch.eye(n)).abs()
        optimizer.zero_grad()
        (overlaps * (20 + step / 10)).flatten().logsumexp(0).div(20 + step / 10).backward()
        optimizer.step()
    return F.normalize(drawn.detach(), dim=-1)


def swaps(n: int) -> tuple[Tensor, Tensor]:
    """Return pairs of places `[B, 2 n, 2]` and who stands first after each swap `[B, 2 n]`."""
    pairs = torch.rand(BATCH, 2 * n, n).argsort(-1)[..., :2]
    # Half of the swaps take the first place, or it would seldom change.
    first = torch.rand(BATCH, 2 * n) < 0.5
    pairs[..., 0] = torch.where(first & (pairs[..., 1] != 0), 0, pairs[..., 0])
    pairs = pairs.sort(-1, descending=True).values  # k_i - k_j of two swaps would else overlap by -2
    standing, answers, rows = torch.arange(n).repeat(BATCH, 1), [], torch.arange(BATCH)
    for i, j in (pair.unbind(-1) for pair in pairs.unbind(1)):
        standing[rows, i], standing[rows, j] = standing[rows, j], standing[rows, i].clone()
        answers.append(standing[:, 0].clone())
    return pairs, torch.stack(answers, 1)


def read_first(keys: Tensor, pairs: Tensor, kernel: str) -> Tensor:
    """Return what the first place's key reads after each swap, `[B, 2 n, n]`."""
    kappa, n = KERNELS[kernel], len(keys)
    written = torch.cat((keys.expand(BATCH, n, D), keys[pairs[..., 0]] - keys[pairs[..., 1]]), 1)
    v = torch.eye(n, written.shape[1]).T.expand(BATCH, -1, -1)
    lower = kappa(written @ written.mT).tril(-1)
    u = torch.linalg.solve_triangular(lower, v, upper=False, unitriangular=True)
    return (kappa(written @ keys[0]).unsqueeze(-1) * u).cumsum(1)[:, n:]


def accuracy(n: int, keys: Tensor, kernel: str, updates: int) -> tuple[float, float]:
    """Learn to read; return the share of answers that are right, and of those after the last swap."""
    layer = nn.Linear(n, n)
    optimizer = torch.optim.Adam(layer.parameters(), lr=0.03)
    for _ in range(updates):
        pairs, answers = swaps(n)
        loss = F.cross_entropy(layer(read_first(keys, pairs, kernel)).flatten(0, 1), answers.flatten())
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        drawn = [swaps(n) for _ in range(EVALUATED)]
        right = torch.cat([layer(read_first(keys, p, kernel)).argmax(-1) == answers for p, answers in drawn])
    return right.float().mean().item(), right[:, -1].float().mean().item()


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("updates", type=int, nargs="?", default=150, help="of each layer; default: 150")
    updates = parser.parse_args().updates
    if updates < 1:
        parser.error(f"updates {updates}; give at least 1")
    torch.manual_seed(1)
    torch.set_num_threads(1)
    print(
        "| n | swaps | largest overlap of keys | linear | after the last swap | round | after the last swap |"
    )
    print("|---:|---:|---:|---:|---:|---:|---:|")
    for n in (32, 64, 128, 192):
        keys = nearly_orthogonal(n)
        largest = (keys @ keys.T - torch.eye(n)).abs().max().item()
        shares = [share for kernel in KERNELS for share in accuracy(n, keys, kernel, updates)]
        print(f"| {n} | {2 * n} | {largest:.3f} | " + " | ".join(f"{share:.3f}" for share in shares) + " |")


if __name__ == "__main__":
    main()
