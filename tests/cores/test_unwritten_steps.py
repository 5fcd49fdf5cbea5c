"""Steps whose writes are taken out of the memory, against loops over all that was written but for them."""

from __future__ import annotations

import math
from collections.abc import Callable
from itertools import pairwise
from typing import Any

import pytest
import torch
from fastweight_helpers import assert_near
from torch import Tensor

from deltabeast.cores import Core, FastWeightCore, State, core_names, make_core
from deltabeast.cores.delta_net import DeltaMemory
from deltabeast.cores.fast_weights import MemoryTrace, StatePart
from deltabeast.cores.gated_delta_net import MomentumDeltaMemory
from deltabeast.cores.linear_form import DeltaForm, Writes
from deltabeast.cores.observe import watch_traces
from deltabeast.cores.surgery import nearly_equal, scale_writes, step_without_writes

STEPS, ROWS, HEADS, SIZE = 12, 3, 2, 4
SMALL = {"hidden_size": HEADS * SIZE, "num_heads": HEADS, "ff_size": 8}

Parts = list[Tensor]
"""what the slow net emits in a step for one head"""
Rule = Callable[[Any, list[Parts], list[bool], int], list[Tensor]]
"""memory, parts of the steps of one episode, which of them are unwritten, the head -> what each step reads"""


def small(name: str, **options: Any) -> FastWeightCore:
    core = make_core(name, 3, **{**SMALL, **options}).double()
    assert isinstance(core, FastWeightCore)
    return core


def random_reset() -> Tensor:
    reset = torch.rand(STEPS, ROWS) < 0.2
    reset[1:, 0] = False
    reset[:, 1] = reset[-1, 2] = True
    return reset


def play(
    core: Core, x: Tensor, reset: Tensor, unwritten: list[bool]
) -> tuple[dict[tuple[int, int], MemoryTrace], State]:
    """Play from the initial state; traces by step and layer, and the last state."""
    traces: dict[tuple[int, int], MemoryTrace] = {}
    state: State | None = core.initial_state(x.shape[1])
    with torch.no_grad():
        for t in range(len(x)):
            assert state is not None
            with watch_traces(core, lambda n, _, trace, t=t: traces.update({(t, n): trace})):  # type: ignore[misc]
                if unwritten[t]:
                    state = step_without_writes(core, x[t], state, reset[t])
                else:
                    _, state = core.step(x[t], state, reset[t])
    assert state is not None
    return traces, state


def elu(x: Tensor) -> Tensor:
    x = torch.where(x > 0, x + 1, x.exp())
    return x / (x.sum() + 1e-5)


def erased(W: Tensor, k: Tensor, beta: Tensor) -> Tensor:
    return W - beta * torch.outer(W @ k, k)


def delta_net(memory: Any, steps: list[Parts], unwritten: list[bool], head: int) -> list[Tensor]:
    W, y = torch.zeros(SIZE, SIZE).double(), []
    for (q, k, v, b), skip in zip(steps, unwritten, strict=True):
        k, beta = elu(k), b.sigmoid()
        without = erased(W, k, beta)
        y.append((without + beta * torch.outer(v, k)) @ elu(q))
        W = without if skip else without + beta * torch.outer(v, k)
    return y


def momentum(memory: Any, steps: list[Parts], unwritten: list[bool], head: int) -> list[Tensor]:
    """C goes on and is added, but the step adds nothing to it."""
    W, C, y = torch.zeros(SIZE, SIZE).double(), torch.zeros(SIZE, SIZE).double(), []
    for (q, k, v, b, eta), skip in zip(steps, unwritten, strict=True):
        k, beta, older = elu(k), b.sigmoid(), eta.sigmoid() * C
        own = beta * torch.outer(v, k)
        y.append((erased(W, k, beta) + older + own) @ elu(q))
        C = older if skip else older + own
        W = erased(W, k, beta) + C
    return y


def delta_delta(memory: Any, steps: list[Parts], unwritten: list[bool], head: int) -> list[Tensor]:
    """M is written all the same."""
    M, made = torch.zeros(3 * SIZE + 1, SIZE).double(), []
    for q, k, v, b in steps:
        M = erased(M, elu(k), b.sigmoid()) + b.sigmoid() * torch.outer(v, elu(k))
        made.append([*(M @ elu(q)).split((SIZE, SIZE, SIZE, 1))])
    return delta_net(memory, made, unwritten, head)


def delta_mlp(memory: Any, steps: list[Parts], unwritten: list[bool], head: int) -> list[Tensor]:
    """Each W1 is written all the same."""
    xs = [step[0] for step in steps]
    for block, norm in enumerate(memory.norms):
        W1, W2 = torch.zeros(4 * SIZE, SIZE).double(), torch.zeros(SIZE, 4 * SIZE).double()
        for t, skip in enumerate(unwritten):
            k1, v1, k2, v2, b1, b2 = steps[t][1 + 6 * block : 7 + 6 * block]
            W1 = erased(W1, elu(k1), b1.sigmoid()) + b1.sigmoid() * torch.outer(v1, elu(k1))
            without, own = erased(W2, elu(k2), b2.sigmoid()), b2.sigmoid() * torch.outer(v2, elu(k2))
            centred = xs[t] - xs[t].mean()
            normal = norm.weight * centred / (centred.square().mean() + norm.eps).sqrt() + norm.bias
            xs[t] = xs[t] + (without + own) @ elu(W1 @ elu(normal))
            W2 = without if skip else without + own
    return xs


def delta_product(memory: Any, steps: list[Parts], unwritten: list[bool], head: int) -> list[Tensor]:
    """None of a step's writes is there; each of them erases."""
    W, y = torch.zeros(SIZE, SIZE).double(), []
    for (q, keys, values, betas, *gate), skip in zip(steps, unwritten, strict=True):
        if memory.decay is not None:
            rate = (gate[0] + memory.decay.b[head]).exp().log1p() * memory.decay.A[head].exp()
            W = W * (-rate).exp()
        without, written = W, W
        for k, v, b in zip(keys.view(-1, SIZE), values.view(-1, SIZE), betas, strict=True):
            k, beta = k / k.norm(), memory.beta_max * b.sigmoid()
            without = erased(without, k, beta)
            written = erased(written, k, beta) + beta * torch.outer(v, k)
        y.append(written @ (q / q.norm()))
        W = without if skip else written
    return y


def delta_rnn(memory: Any, steps: list[Parts], unwritten: list[bool], head: int) -> list[Tensor]:
    """Both W and R miss their write; the output, which R reads next, is as it was."""
    W, R, last = (
        torch.zeros(SIZE, SIZE).double(),
        torch.zeros(SIZE, SIZE).double(),
        torch.zeros(SIZE).double(),
    )
    y = []
    for (q, k, v, recurrent_k, recurrent_v, b, recurrent_b), skip in zip(steps, unwritten, strict=True):
        query = last if memory.variant == "A" else last.softmax(0)
        after = []
        for M, key, value, beta in (
            (W, k, v, b.sigmoid()),
            (R, recurrent_k, recurrent_v, recurrent_b.sigmoid()),
        ):
            without = erased(M, key.softmax(0), beta)
            after.append((without, without + beta * torch.outer(value, key.softmax(0))))
        last = after[0][1] @ q.softmax(0) + after[1][1] @ query
        last = last.softmax(0) if memory.variant == "A" else last
        y.append(last)
        W, R = (without if skip else written for without, written in after)
    return y


def attention(memory: Any, steps: list[Parts], unwritten: list[bool], head: int) -> list[Tensor]:
    """Every step of the window is weighed by itself; the unwritten ones are not there, at their age."""
    y = []
    for t in range(len(steps)):
        weights, values, q = [], [], steps[t][0]
        for j in range(max(0, t - memory.window), t + 1):
            _, k, v, *_ = steps[j]
            if j < t and unwritten[j]:
                continue
            score = k @ (q + memory.content_bias[head] if hasattr(memory, "content_bias") else q)
            if j < t and hasattr(memory, "content_bias"):
                ages = torch.stack([waves(t - j, n) - waves(0, n) for n in range(HEADS * SIZE)])
                to_ages = memory.to_ages.weight[head * SIZE : (head + 1) * SIZE]
                score = score + (q + memory.age_bias[head]) @ (to_ages @ ages.to(to_ages))
            score = score * SIZE**-0.5
            if j < t and memory.bias is not None:
                score = score + memory.bias[head, t - j - 1]
            decay = math.prod(
                float(steps[n][3].sigmoid()) ** (1 / 16) for n in range(j + 1, t + 1) if memory.gated
            )
            weights.append(score.exp() * decay)
            values.append(v)
        total = sum(weights) if memory.normalise else 1
        y.append(sum((w / total * v for w, v in zip(weights, values, strict=True)), torch.zeros(SIZE)))
    return y


def waves(age: int, n: int) -> Tensor:
    """Sines, then cosines, of GTrXL."""
    half = HEADS * SIZE // 2
    phase = torch.tensor(age * 10_000.0 ** (-2 * (n % half) / (HEADS * SIZE)))
    return phase.sin() if n < half else phase.cos()


def deltaformer(memory: Any, steps: list[Parts], unwritten: list[bool], head: int) -> list[Tensor]:
    """What was not written is not erased either."""
    written: list[Tensor] = []
    y = []
    for t, (q, _, v, w, a, b) in enumerate(steps):
        seen = [j for j in range(max(0, t - memory.window), t) if not unwritten[j]]
        u = a.sigmoid() * v
        if seen:
            found = torch.stack([steps[j][1] @ w * SIZE**-0.5 for j in seen]).softmax(0)
            u = u - b.sigmoid() * found @ torch.stack([written[j] for j in seen])
        written.append(u)
        read = torch.stack([steps[j][1] @ q * SIZE**-0.5 for j in [*seen, t]]).softmax(0)
        y.append(read @ torch.stack([written[j] for j in [*seen, t]]))
    return y


CASES: list[tuple[str, dict[str, Any], list[Rule]]] = [
    ("delta_net", {"short_conv": 2, "clock": 1}, [delta_net] * 2),
    ("momentum_delta_net", {}, [momentum] * 2),
    ("delta_delta_net", {}, [delta_delta] * 2),
    ("delta_mlp", {"blocks": 2}, [delta_mlp] * 2),
    ("delta_product", {}, [delta_product] * 2),
    ("delta_product", {"writes": 3, "gated": True, "beta_max": 1}, [delta_product] * 2),
    ("delta_rnn", {}, [delta_rnn] * 2),
    ("delta_rnn", {"variant": "A"}, [delta_rnn] * 2),
    ("softmax_attention", {"window": 4}, [attention] * 2),
    ("softmax_attention", {"window": 1, "short_conv": 3}, [attention] * 2),
    ("softmax_attention", {"window": 5, "gated": True, "positions": True}, [attention] * 2),
    ("softmax_attention", {"window": 5, "gated": True, "normalise": False}, [attention] * 2),
    ("transformer", {"window": 6}, [attention] * 2),
    ("gtrxl", {"window": 6}, [attention] * 2),
    ("deltaformer", {"window": 5}, [deltaformer] * 2),
    (
        "hybrid",
        {"layers": "momentum_delta_net,softmax_attention,delta_net"},
        [momentum, attention, delta_net],
    ),
]


@pytest.mark.parametrize(("name", "options", "rules"), CASES)
def test_steps_that_write_nothing(name: str, options: dict[str, Any], rules: list[Rule], seed: int) -> None:
    """Each reads what it writes, no later one does; layer by layer, with what the slow net emits."""
    core, x, reset = small(name, **options), torch.randn(STEPS, ROWS, 3).double(), random_reset()
    for memory in core.memories():
        for parameter in memory.parameters():
            parameter.data += 0.3 * torch.randn_like(parameter)  # biases begin at 0
    tolerance = 1e-6 if name == "gtrxl" else 1e-11  # its waves are in single precision
    unwritten = [True, *(torch.rand(STEPS - 1) < 0.4).tolist()]
    traces, _ = play(core, x, reset, unwritten)
    with torch.no_grad():
        for n, (memory, rule) in enumerate(zip(core.memories(), rules, strict=True)):
            for row in range(ROWS):
                begins = sorted({0, *reset[:, row].nonzero().flatten().tolist(), STEPS})
                for begin, end in pairwise(begins):
                    for head in range(HEADS):
                        steps = [
                            [part[0, row, head] for part in traces[t, n].projections]
                            for t in range(begin, end)
                        ]
                        y = rule(memory, steps, unwritten[begin:end], head)
                        for t in range(begin, end):
                            got = traces[t, n].y[0, row, head]
                            assert_near(f"layer {n}, step {t}", got, y[t - begin], tolerance)


def readings(core: Core, x: Tensor, step: int | None) -> Tensor:
    """What the only layer reads in each step `[T, B, H, h]`, one step unwritten."""
    unwritten = [t == step for t in range(len(x))]
    traces, _ = play(core, x, torch.zeros(len(x), x.shape[1], dtype=torch.bool), unwritten)
    return torch.stack([traces[t, 0].y[0] for t in range(len(x))])


@pytest.mark.parametrize("name", ["softmax_attention", "gtrxl", "deltaformer"])
def test_a_step_that_has_left_the_window_leaves_nothing(name: str, seed: int) -> None:
    """Bit for bit, where writes erase nothing; each step that sees it reads something else."""
    core, x = small(name, window=2, num_layers=1), torch.randn(6, 1, 3).double()
    whole = readings(core, x, None)
    changed = [readings(core, x, step) for step in range(len(x))]
    for step, without in enumerate(changed):
        assert torch.equal(without[: step + 1], whole[: step + 1])
        differ = (without != whole).flatten(1).any(1)[step + 1 :].tolist()
        assert all(differ[:2])
        if name != "deltaformer":
            assert not any(differ[2:])
    assert not torch.equal(changed[3], changed[4])


@pytest.mark.parametrize("name", ["momentum_delta_net", "delta_delta_net", "delta_mlp"])
def test_each_step_has_an_effect_of_its_own(name: str, seed: int) -> None:
    """On every later step, and another one than `scale_writes` has, which takes erasures back, too."""
    core, x = small(name, num_layers=1), torch.randn(6, 1, 3).double()
    whole, reset = readings(core, x, None), torch.zeros(1, dtype=torch.bool)
    changed = [readings(core, x, step) for step in range(len(x))]
    for step, without in enumerate(changed):
        assert (without != whole).flatten(1).any(1).tolist() == [t > step for t in range(len(x))]
    assert not torch.equal(changed[3], changed[4])
    with torch.no_grad():
        _, before = core.unroll(x[:3], core.initial_state(1), reset.expand(3, 1))
        _, after = core.step(x[3], before, reset)
        taken_back = scale_writes(core, before, after, reset, torch.zeros(1))
        unwritten = step_without_writes(core, x[3], before, reset)
    assert unwritten is not None
    assert not all(map(torch.equal, taken_back, unwritten)) and not all(map(torch.equal, after, unwritten))


@pytest.mark.parametrize("name", core_names())
def test_every_core_of_the_backbone(name: str, seed: int) -> None:
    """Rows are their own, a reset leaves nothing, and all but the memory is as after the step."""
    if name in ("feedforward", "gated_feedforward", "lstm", "gru"):
        core: Any = make_core(name, 3)
        nothing = torch.zeros(2, dtype=torch.bool)
        assert step_without_writes(core, torch.randn(2, 3), core.initial_state(2), nothing) is None
        return
    core = (
        make_core(name, 3).double() if name in ("hybrid", "rdn_large") else small(name, clock=1, short_conv=2)
    )
    state = tuple(torch.rand_like(part) for part in core.initial_state(3))
    x, reset = torch.randn(3, 3).double(), torch.tensor([False, True, False])
    got = step_without_writes(core, x, state, reset)
    with torch.no_grad():
        _, after = core.step(x, state, reset)
    assert got is not None and [part.shape for part in got] == [part.shape for part in after]
    for row in range(3):
        part = slice(row, row + 1)
        start = core.initial_state(1) if reset[row] else tuple(each[part] for each in state)
        alone = step_without_writes(core, x[part], start, torch.zeros(1, dtype=torch.bool))
        assert alone is not None
        for one, other in zip(alone, got, strict=True):
            assert_near(f"row {row}", one, other[part], 1e-11)
    layers = [memory.layer_state_parts() for memory in core.memories()]
    kinds = [part.kind for parts in (layers if name == "hybrid" else layers[:1]) for part in parts]
    attends = [kind == "cache" for kind in kinds[:3]] == [True] * 3
    for n, (mine, theirs) in enumerate(zip(got, after, strict=True)):
        kind = kinds[n] if n < len(kinds) else "time"
        memory = kind in ("fast weights", "momentum") or (attends and n < 3) or (name == "hybrid" and n > 0)
        if name in ("delta_delta_net", "delta_mlp") and n == 0:
            memory = False  # M and W1
        assert torch.equal(mine, theirs) != memory, (n, kind)


def test_what_is_nearly_equal() -> None:
    """0.1% of a number and 0.01% of the largest, just inside and just outside."""
    one = torch.tensor([2.0, -20.0, 0.0])  # which may differ by 0.004, 0.022 and 0.002
    for n, most in enumerate((0.004, 0.022, 0.002)):
        for sign in (-1, 1):
            near, far = one.clone(), one.clone()
            near[n] += 0.99 * sign * most
            far[n] += 1.01 * sign * most
            assert nearly_equal(near, one) and not nearly_equal(far, one), (n, sign)
    assert not nearly_equal(one[:2], one) and not nearly_equal(one * torch.nan, one)
    assert not nearly_equal(one[:1], one[:1].expand(2)), "of one shape"


class Unlike(DeltaMemory):
    """Its form says another thing than its state."""

    def linear_form(self, trace: MemoryTrace) -> DeltaForm | None:
        form = super().linear_form(trace)
        return form and form._replace(W=form.W + 1)


class WithoutMomentum(MomentumDeltaMemory):
    """Its form says nothing of the average writes, and still is right for a first step."""

    def linear_form(self, trace: MemoryTrace) -> DeltaForm:
        form = super().linear_form(trace)
        assert form is not None
        return form._replace(momentum=None, C=None)


class Undeclared(MomentumDeltaMemory):
    """Its state does not say which of it are the average writes."""

    def state_parts(self) -> tuple[StatePart, ...]:
        W, C = super().state_parts()
        return W, StatePart("output", C.shape)


class OfSeveral(MomentumDeltaMemory):
    """Momentum with two writes a step, which no replay takes."""

    def linear_form(self, trace: MemoryTrace) -> DeltaForm:
        form = super().linear_form(trace)
        assert form is not None
        q, *others = form.writes
        return form._replace(writes=Writes(q, *(torch.cat((each, 0 * each), 3) for each in others)))


class ByItself(DeltaMemory):
    """Without a form."""

    def unroll(self, projections: tuple[Tensor, ...], state: State, reset: Tensor) -> tuple[Tensor, State]:
        return super().unroll(projections, state, reset)


@pytest.mark.parametrize("kind", [Unlike, WithoutMomentum, Undeclared, OfSeveral, ByItself])
def test_a_form_that_is_not_of_the_state_says_nothing(kind: Any, seed: int) -> None:
    own = type("Own", (FastWeightCore,), {"memory": kind})(3, **SMALL)
    x, reset = torch.randn(2, 3), torch.zeros(2, dtype=torch.bool)
    assert step_without_writes(own, x, own.initial_state(2), reset) is None
    sound = type("Sound", (FastWeightCore,), {"memory": DeltaMemory})(3, **SMALL)
    assert step_without_writes(sound, x, sound.initial_state(2), reset) is not None
