"""Do the tests notice? Breaks kernels and cores in one place at a time and runs their tests on each.

    python tests/kernels/mutations.py [beginnings of file names]

Works on a copy; prints the mutants that survive and exits 1 if any does. Some ten minutes.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]

# file, what to replace (its first occurrence), by what
MUTANTS = [
    ("kernels/reference.py", "return torch.where(rows, ", "return state * ~rows  # ("),
    ("kernels/reference.py", "write(begin(W, reset[t])", "write(begin(W, reset[t - 1])"),
    ("kernels/reference.py", "beta.unsqueeze(-1) * (v - read(W, k))", "beta.unsqueeze(-1) * v"),
    ("kernels/reference.py", "begin(y, reset[t]).softmax(-1)", "y.softmax(-1)"),
    ("kernels/reference.py", "g = begin(y, reset[t]).tanh()", "g = begin(y, reset[t])"),
    ("kernels/reference.py", '"bhv,hvn->bhn"', '"bhn,hvn->bhv"'),
    ("kernels/pytorch/chunked.py", "rows.cumsum(-1, ", "rows.roll(1, -1).cumsum(-1, "),
    ("kernels/pytorch/chunked.py", "alive = segment == 0", "alive = segment <= 1"),
    ("kernels/pytorch/chunked.py", "segment == segment[..., -1:]", "segment >= 0"),
    ("kernels/pytorch/chunked.py", "sees.tril(-1).to(dtype)", "sees.to(dtype)"),
    ("kernels/pytorch/chunked.py", "        sees.to(dtype),\n", "        sees.tril(-1).to(dtype),\n"),
    ("kernels/pytorch/chunked.py", "    W, broken = _set_aside_broken(W)\n", "    broken = None\n"),
    ("kernels/pytorch/chunked.py", "torch.where(broken & alive[-1].unsqueeze(-1), torch.nan, W)", "W"),
    ("kernels/pytorch/chunked.py", "steps_first[whole, steps - whole * length :] = 0", "pass"),
    (
        "kernels/pytorch/chunked.py",
        "length = -(-steps // max(1, round(steps / CHUNK)))",
        "length = CHUNK + 1",
    ),
    ("kernels/pytorch/chunked.py", "Q_alive, K_survives = Q * masks.alive,", "Q_alive, K_survives = Q,"),
    ("kernels/pytorch/chunked.py", "masks.kept.flip(0)", "masks.kept"),
    ("kernels/pytorch/chunked.py", ".addcmul_(masks.survives, V @ ends)", ""),
    ("kernels/pytorch/chunked.py", "A * b.mT, eye", "A * b, eye"),
    ("kernels/pytorch/chunked.py", "error, out=E[c]", "V[c], out=E[c]"),
    ("kernels/pytorch/chunked.py", "start * masks.kept[c], U[c].mT", "start, U[c].mT"),
    ("kernels/pytorch/chunked.py", "dU[c].baddbmm_(K_survives[c]", "dU[c].baddbmm_(K[c]"),
    ("kernels/pytorch/chunked.py", "dU.add_(A.mT @ minus_dV)", "dU"),
    (
        "kernels/pytorch/chunked.py",
        "mul_(torch.cat((masks.before, masks.sees), -2))",
        "mul_(torch.cat((masks.sees, masks.sees), -2))",
    ),
    ("kernels/pytorch/chunked.py", ".addcmul_(masks.survives, U @ ends).add_", ".add_(U @ ends).add_"),
    ("kernels/pytorch/chunked.py", "D[c].mT, P_alive[c]", "D[c].mT, P[c]"),
    ("kernels/pytorch/chunked.py", "            before = resets.forget(t, before)\n", ""),
    (
        "kernels/pytorch/chunked.py",
        "resets.forget(t, softmax_backward(dp, p[t]))",
        "softmax_backward(dp, p[t])",
    ),
    (
        "kernels/pytorch/chunked.py",
        "(masks.alive.expand(-1, -1, -1, size), masks.sees), -1)",
        "(masks.alive.expand(-1, -1, -1, size), masks.before), -1)",
    ),
    ("kernels/pytorch/chunked.py", "torch.add(rows[t], before, out=dy[t])", "dy[t] = rows[t]"),
    (
        "kernels/pytorch/stepwise.py",
        "self.owned = False  # the caller's",
        "self.owned = True  # the caller's",
    ),
    ("kernels/pytorch/stepwise.py", "            resets.forget_(t + 1, W)\n", ""),
    ("kernels/pytorch/stepwise.py", "resets.forget_(t, g)", "resets.forget_(0, g)"),
    ("kernels/pytorch/stepwise.py", "ctx.resets.forget_(t, steps.dW, dy)", "ctx.resets.forget_(t, steps.dW)"),
    ("kernels/pytorch/stepwise.py", "ctx.resets.forget_(t, steps.dW, dy)", "ctx.resets.forget_(t, dy)"),
    ("kernels/pytorch/stepwise.py", "(1 - g * g)", "torch.ones_like(g)"),
    ("kernels/pytorch/stepwise.py", ".addcmul_(self.swapped[t], dots[:, :1])", ""),
    ("kernels/pytorch/stepwise.py", "dP[:, 1:].add_(torch.bmm(self.u[t], self.dW))", "pass"),
    (
        "kernels/pytorch/stepwise.py",
        "        state = state.clone(memory_format=torch.contiguous_format)\n",
        "",
    ),
    (
        "kernels/pytorch/stepwise.py",
        "torch.stack((resets.forget(t, y).softmax(-1)",
        "torch.stack((y.softmax(-1)",
    ),
    ("kernels/pytorch/stepwise.py", "self.dW.baddbmm_(dreads.mT, self.P[t])", "pass"),
    ("kernels/reference.py", "i, f, g, o = ", "f, i, g, o = "),
    ("kernels/pytorch/stepwise.py", "forget_(t, before, c)", "forget_(t, before)"),
    ("kernels/pytorch/stepwise.py", "ctx.resets.forget_(t, dh, dc)", "ctx.resets.forget_(t, dh)"),
    ("kernels/pytorch/stepwise.py", "cs * f * (1 - f)", "cs * f"),
    (
        "kernels/pytorch/stepwise.py",
        "torch.zeros_like(dC), dC.clone",
        "torch.zeros_like(dC), torch.zeros_like(dC).clone",
    ),
    ("kernels/triton/steps.py", "error = v - read", "error = v + read"),
    ("kernels/triton/steps.py", "dW += outer(dy, q)", "dW += 0"),
    ("kernels/triton/steps.py", "dq = read_back(W, dy) + tl.sum(u * dy, 0) * k", "dq = read_back(W, dy)"),
    ("kernels/triton/steps.py", "dW * u[:, None] - W * dv[:, None]", "dW * u[:, None]"),
    ("kernels/triton/steps.py", "tl.arange(0, BLOCK) < SIZE, x,", "tl.arange(0, BLOCK) < BLOCK, x,"),
    ("kernels/triton/steps.py", "mask=i < SIZE, other=0.0", "mask=i < BLOCK, other=0.0"),
    ("kernels/triton/steps.py", "tl.where(x < 0, -y, y)", "y"),
    (
        "kernels/triton/delta.py",
        "now = tl.where(tl.load(reset + t * tl.num_programs(0) + b), 0.0, now)",
        "pass",
    ),
    (
        "kernels/triton/delta.py",
        "gradient = tl.where(tl.load(reset + t * tl.num_programs(0) + b), 0.0, gradient)",
        "pass",
    ),
    ("kernels/triton/delta.py", " - read_back(now, load_row(dv + at * V, V, BLOCK_V))", ""),
    ("kernels/triton/delta.py", "            gradient -= outer(dv_row, k_row)\n", ""),
    ("kernels/triton/delta.py", "t = steps - 1 - back", "t = back"),
    ("kernels/operators.py", "x if x.stride(-1) == 1 else x.contiguous()", "x"),
    ("kernels/operators.py", "None if x is None else x.contiguous()", "x"),
    ("kernels/operators.py", "for dx in (dq, dk, dv, dbeta", "for dx in (dk, dq, dv, dbeta"),
    ("kernels/native/rules.c", "if (fresh(s, t, b) && !alone) clear(now);", ""),
    ("kernels/native/rules.c", "at < s->V && !fresh", "at < s->V"),
    ("kernels/native/rules.c", "if (!fresh) load(now, W + j", "load(now, W + j"),
    (
        "kernels/native/rules.c",
        "clear(G_T), zero(late_v), zero(late_k);\n        }",
        "clear(G_T);\n        }",
    ),
    (
        "kernels/native/rules.c",
        "zero(dp_row), zero(late_v), zero(late_k);\n        }",
        "zero(dp_row);\n        }",
    ),
    (
        "kernels/native/rules.c",
        "        write(G, late_v, late_k, s->V);\n        store_matrix(dR",
        "        store_matrix(dR",
    ),
    ("kernels/native/rules.c", "= now + g[j] * c[i]", "= now"),
    ("kernels/native/rules.c", "sums(with_q) + match * u[i]", "sums(with_q)"),
    ("kernels/native/rules.c", "error[i] = v[i] - sums(with_k)", "error[i] = v[i] + sums(with_k)"),
    ("kernels/native/dense.c", "k ? k->error + at * s->d", "k ? k->error + at"),
    ("kernels/native/dense.c", "k ? k->beta_used + at * s->heads", "k ? k->beta_used + at * s->d"),
    ("cores/rdn.py", "trace.known[-2]}", "trace.known[-1]}"),
    ("kernels/native/dense.c", "if (bias) sums[i] += bias[i];", ""),
    ("kernels/native/dense.c", "if (add) sums[i] += y[i];", ""),
    ("kernels/native/dense.c", "relu ? rectified(sums[i]) : sums[i]", "sums[i]"),
    ("kernels/native/dense.c", "(vec)(~dead & (ints)x)", "x > 0 ? x : (vec){0}"),
    ("kernels/native/dense.c", "for (; n < N; n++)", "for (; n + 1 < N; n++)"),
    ("kernels/native/dense.c", "square / (float)size + eps", "square / (float)size"),
    ("kernels/native/dense.c", "x + row * stride, some", "x + row * size, some"),
    ("kernels/native/dense.c", "reset[j] ? 0 : -1", "-1"),
    ("kernels/native/dense.c", "            c[n] = (vec)(alive & (ints)c[n]);", "            ;"),
    ("kernels/native/dense.c", "dh[n] += from_y[n];", "dh[n] = from_y[n];"),
    ("kernels/native/dense.c", "(vec)(alive & (ints)(dc[n] * f))", "dc[n] * f"),
    ("kernels/native/dense.c", "dh[n] = (vec)(alive & (ints)dh[n])", "dh[n] = dh[n]"),
    ("kernels/native/dense.c", "if (dc_last) gather", "if (0) gather"),
    ("kernels/native/dense.c", "numbers += size;", "numbers += d / s->heads;"),
    ("kernels/native/dense.c", "decaying(x[k] - largest)", "decaying(x[k])"),
    ("kernels/native/dense.c", "if (kind == SOFTMAX) to", "if (0) to"),
    ("kernels/native/dense.c", "kind == SIGMOID && k", "k"),
    ("kernels/native/dense.c", "part[i].h = width", "part[i].h = 0"),
    (
        "kernels/native/dense.c",
        "s->heads, d / s->heads, d / s->heads, 1, reset + row}",
        "s->heads, d / s->heads, d / s->heads, 1, reset}",
    ),
    ("kernels/native/dense.c", "before[i] = state[i] + at", "before[i] = state[i] + row * s->state_sizes[i]"),
    ("kernels/native/dense.c", "c[n] = f * c[n] + i * g;", "c[n] = c[n] + i * g;"),
    ("kernels/native/dense.c", "if (hs) scatter(hs + (t", "if (0) scatter(hs + (t"),
    (
        "kernels/native/dense.c",
        "(row / LANES * T + t) * 6 * N : one_step;",
        "(row / LANES * T) * 6 * N : one_step;",
    ),
    (
        "kernels/native/dense.c",
        "(layer * k->steps + k->t) * rows + row :",
        "(layer * k->steps + k->t) * rows :",
    ),
    ("kernels/native/known.py", " and self._versions == self._now()", ""),
    ("kernels/native/known.py", "all(map(operator.is_, self._weights, present)) and ", ""),
    ("kernels/native/known.py", " and self.t < self.steps", ""),
    ("kernels/native/known.py", "        dz += dresult\n", ""),
    ("kernels/native/known.py", "aten.threshold_backward(dhidden, hidden, 0)", "aten.clone(dhidden)"),
    ("kernels/native/dense.c", "now[n] = (vec)(alive & (ints)now[n]), c[n] =", "c[n] ="),
    ("kernels/native/dense.c", "{w_h, b_h}", "{w_h, 0}"),
    ("kernels/native/lstm.py", "        or reset.shape != (B,)\n", ""),
    ("kernels/native/dense.c", "memcpy(y, after[2]", "if (0) memcpy(y, after[2]"),
    ("kernels/native/shell.py", "if not right or weight.shape != each:", "if not right:"),
    ("kernels/native/shell.py", "        or reset.dtype is not torch.bool\n", ""),
    ("kernels/native/shell.py", "or tuple(part.shape for part in before) != parts", "or False"),
    ("kernels/native/shell.py", "part.is_cpu and part.is_contiguous()", "part.is_cpu"),
    ("kernels/native/dense.py", "    if flat.stride(1) != 1:\n        flat = flat.contiguous()\n", ""),
    ("kernels/native/dense.py", "x.shape[-1] != size", "False"),
    ("kernels/native/dense.py", "w.dtype is torch.float32 and ", ""),
    ("kernels/native/dense.py", " and w.is_contiguous()", ""),
    ("kernels/native/dense.py", " and w.size(0) <= MAX_WIDTH", ""),
    ("kernels/native/lstm.py", "for x in (dy, dc_T))", "for x in (dy, None))"),
    ("kernels/native/lstm.py", "(rows, T, 6, N) if keep", "(B, T, 6, N) if keep"),
    (
        "kernels/native/rules.c",
        "if (fresh(s, t, b)) clear(G), clear(G_T), zero(late_v)",
        "if (0) zero(late_v)",
    ),
    (
        "kernels/native/rules.c",
        "if (fresh(s, t, b)) clear(G), clear(G_T), zero(late_v)",
        "if (fresh(s, t, b)) clear(G), zero(late_v)",
    ),
    ("kernels/native/rules.c", "clear(now), zero(p_row)", "clear(now)"),
    ("kernels/native/rules.c", "clear(now), zero(y_row)", "zero(y_row)"),
    ("kernels/native/rules.c", "if (fresh(s, t, b)) clear(G), clear(G_T), zero(dp_row)", ""),
    (
        "kernels/native/rules.c",
        "if (fresh(s, t, b)) clear(G), clear(G_T), zero(dg_row)",
        "if (fresh(s, t, b)) clear(G), clear(G_T)",
    ),
    ("kernels/native/rules.c", "        if (fresh(s, t, b)) clear(now);\n        if (t", "        if (t"),
    ("kernels/native/rules.c", "t = s->T - 1; t >= 0", "t = s->T - 1; t > 0"),
    ("kernels/native/rules.c", "if (j < rows) EACH(i) even[i] += s[j] * M[j * N + i];", ""),
    ("kernels/native/rules.c", "even[i] = add ? y[i] : (vec){0}", "even[i] = (vec){0}"),
    ("kernels/native/rules.c", "zero(even), zero(odd);", "zero(even);"),
    ("kernels/native/rules.c", "((float *)x)[j] = -INFINITY", "((float *)x)[j] = 0"),
    ("kernels/native/rules.c", "x[i] - m[0]", "x[i]"),
    ("kernels/native/rules.c", "choose(x < -87.0f, (vec){0}, p * (vec)power)", "p * (vec)power"),
    ("kernels/native/rules.c", "p * r + 1.6666665459e-1f", "p * r + 1.6e-1f"),
    ("kernels/native/rules.c", " | sign", ""),
    ("kernels/native/rules.c", "error[i] = v[i] - error[i]", "error[i] = v[i] + error[i]"),
    ("kernels/native/rules.c", "minus_dv[i] = -minus_dv[i]", "minus_dv[i] = minus_dv[i]"),
    ("kernels/native/rules.c", "EACH(i) dq[i] += match * k[i];", ""),
    (
        "kernels/native/rules.c",
        "contract(dk, late_v, W, s->V, true)",
        "contract(dk, late_v, W, s->V, false)",
    ),
    ("kernels/native/rules.c", "contract(dg_row, dv_row, R_T.v, s->V, true);", ""),
    ("kernels/native/rules.c", " + dbeta[at] * R_T.beta[i]", ""),
    ("kernels/native/rules.c", " * (1.0f - strength)", ""),
    ("kernels/native/rules.c", "    transpose_in_place(R_T.k);\n", ""),
    ("kernels/native/rules.c", "if (loaded != h) load_rec", "if (loaded < 0) load_rec"),
    ("kernels/native/rules.c", "memset(to, 0, N * sizeof(vec));", ""),
    ("kernels/native/images.c", "x ^ ((x < 0) & LARGEST)", "x"),
    (
        "kernels/native/images.c",
        "(modulars)in_order(*(const loose_wholes *)x) - BELOW",
        "in_order(*(loose_wholes *)x)",
    ),
    ("kernels/native/images.c", "0x7fff + (((bits)x >> 16) & 1)", "0x8000"),
    (
        "kernels/native/images.c",
        "choose(x[i] <= 0.0f, (vec){0}, x[i])",
        "choose(x[i] > 0.0f, x[i], (vec){0})",
    ),
    ("kernels/native/images.c", "choose(value[i] <= 0.0f, (vec){0}, d[i])", "d[i]"),
    ("kernels/native/images.c", "value > best.value", "value >= best.value"),
    ("kernels/native/images.c", "b.value > a.value", "b.value >= a.value"),
    ("kernels/native/images.c", "column ? -1 : 0, right", "0, right"),
    ("kernels/native/images.c", "2 * column + 1 < W ? 1 : 0", "1"),
    ("kernels/native/images.c", "column > 0 && 2 * column + 1 < W", "column > 0"),
    ("kernels/native/images.c", "else best.place += 3;", ""),
    ("kernels/native/images.c", "best.value > -BELOW", "best.value > 0"),
    ("kernels/native/images.c", "(float)turned[j] / 255.0f", "(float)turned[j] * (1.0f / 255.0f)"),
    ("kernels/native/images.c", "pixels - p < TILE ? pixels - p : TILE", "TILE"),
    ("kernels/native/images.c", "from[2 * pixels + j] << 16", "from[2 * pixels + j] << 24"),
    ("kernels/native/images.c", "(whole + 0x8000) >> 16", "whole >> 16"),
    ("kernels/native/images.c", "add_where(between, w + j, row + 2)", "add_where(between, w + j, row)"),
    ("kernels/native/images.c", "if (column + 1 < columns) add", "add"),
    ("kernels/native/images.c", "if (2 * column + 1 < W) store", "store"),
    ("kernels/native/images.c", "i ? 3 * place : 6", "3 * place"),
    ("kernels/native/images.c", "if (row && 2 * row - 1 < H) gather", "if (row && 2 * row < H) gather"),
    ("kernels/native/images.c", "windows[(row + 1) % 2]", "windows[row % 2]"),
    (
        "kernels/native/images.py",
        "torch.zeros_like(like) if gradient is None",
        "torch.empty_like(like) if gradient is None",
    ),
    ("kernels/native/images.py", "    a, b = _dense(a, b)\n", ""),
    ("kernels/native/images.py", "    (x,) = _dense(x)\n", ""),
    ("kernels/native/images.py", "dy, dr = _dense(dy, dr)\n    dx = _pool", "dx = _pool"),
    ("kernels/native/images.py", "frame.contiguous()", "frame"),
    ("kernels/native/images.py", "wants_gradient(*xs) or any", "any"),
    ("kernels/native/images.py", "compiling.is_watched() or ", ""),
    ("kernels/native/images.py", " and a.dtype == b.dtype", ""),
    ("kernels/native/images.py", "a.shape != b.shape", "a.shape[1:] != b.shape[1:]"),
    ("kernels/native/images.py", " or a.device != b.device", ""),
    ("kernels/native/images.py", "frame.dtype is not torch.uint8", "frame.dtype.is_complex"),
    ("kernels/native/images.py", "x.shape[1] % LANES == 0 and", ""),
    (
        "kernels/triton/recurrent.py",
        "W = tl.where(tl.load(reset + t * tl.num_programs(0) + b), 0.0, W)",
        "pass",
    ),
    ("kernels/triton/recurrent.py", "t % SPACING == 0", "t % SPACING == 1"),
    (
        "kernels/triton/recurrent.py",
        "tl.where(fresh, 0.0, softmax_backward(dp, p_row))",
        "softmax_backward(dp, p_row)",
    ),
    (
        "kernels/triton/recurrent.py",
        "now, y_row = tl.where(fresh, 0.0, now), tl.where(fresh, 0.0, y_row)",
        "pass",
    ),
    ("kernels/triton/recurrent.py", "tl.where(fresh, 0.0, now)", "now * (1.0 - fresh)"),
    ("kernels/triton/recurrent.py", "gradient = tl.where(fresh, 0.0, gradient)", "pass"),
    ("kernels/triton/recurrent.py", "dg * (1 - g_row * g_row)", "dg"),
    ("kernels/triton/recurrent.py", " + rb_now * dbeta_t", ""),
    ("kernels/triton/recurrent.py", "dbeta_t *= strength * (1 - strength)", "pass"),
    ("kernels/triton/lstm.py", "tl.load(reset_next + b)", "tl.load(reset + b)"),
    ("kernels/triton/lstm.py", "tl.where(fresh, 0.0, dc_row * f)", "dc_row * f"),
    ("kernels/triton/lstm.py", "* (1 - tanh_c * tanh_c)", ""),
    ("kernels/triton/lstm.py", "cs[0] = c0", "cs[0] = 0"),
    ("kernels/triton/lstm.py", ".masked_fill(reset.unsqueeze(-1), 0)", ""),
    ("kernels/precision.py", "enabled=False", "enabled=True"),
    ("kernels/rules.py", 'W="B H V K",\n        y0', 'W="B H K V",\n        y0'),
    ("kernels/shapes.py", "0 in sizes or ", ""),
    ("kernels/shapes.py", "given != self._shapes(*sizes)", "given[:-1] != self._shapes(*sizes)[:-1]"),
    ("kernels/shapes.py", "given[i][at] if len(given[i]) >= -at else 1", "given[i][at]"),
    ("kernels/shapes.py", "reset.dtype is not torch.bool or ", ""),
    ("kernels/shapes.py", "len(dtypes) > 1 or ", ""),
    ("kernels/shapes.py", " or len(devices) > 1", ""),
    (
        "kernels/shapes.py",
        "for source in sources if source != name",
        "for source in sources",
    ),
    ("kernels/native/compiling.py", "if _only_mine(made) and made.stem", "if made.stem"),
    ("kernels/native/compiling.py", 'made.stem == f"{name}-{_digest(made.read_bytes())}"', "True"),
    ("kernels/native/compiling.py", "        made.unlink(missing_ok=True)\n", ""),
    ("kernels/native/compiling.py", "            part.chmod(0o700)\n", ""),
    ("kernels/native/compiling.py", "folder.mkdir(mode=0o700, ", "folder.mkdir("),
    ("kernels/native/compiling.py", " and folder.stat().st_uid == os.geteuid()", ""),
    ("kernels/native/compiling.py", "        folder.chmod(0o700)\n", "        pass\n"),
    (
        "kernels/native/compiling.py",
        "        _make_private(folder)\n",
        "        folder.mkdir(parents=True, exist_ok=True)\n",
    ),
    ("kernels/native/compiling.py", "status.st_uid == os.geteuid() and ", ""),
    ("kernels/native/compiling.py", " and not status.st_mode & (stat.S_IWGRP | stat.S_IWOTH)", ""),
    ("kernels/native/compiling.py", "stat.S_IWGRP | ", ""),
    ("kernels/native/rules.py", 'return compiling.problem("rules.c", f"N={blocks}")', "return None"),
    ("kernels/native/rules.py", "_cannot_build(blocks)", "_cannot_build(2)"),
    ("kernels/dispatch.py", "        self.shapes.check(self.name, inputs)\n", ""),
    ("kernels/dispatch.py", "self.reference if torch.is_grad_enabled() else self.step", "self.step"),
    ("kernels/dispatch.py", "    @without_autocast\n", ""),
    ("kernels/dispatch.py", "self.chunked or self.reference", "self.chunked"),
    ("kernels/dispatch.py", "elif problem := self.problem(backend, inputs):", "elif problem := '':"),
    ("cores/shell.py", "self.unroll(parts, state,", "self.unroll(parts, tuple(s.detach() for s in state),"),
    ("cores/shell.py", ".transpose(0, 1) for parts in", ".transpose(0, 1).flip(1) for parts in"),
    ("cores/shell.py", "self.layers[i](*inputs", "self.layers[-1 - i](*inputs"),
    ("cores/shell.py", ".unflatten(-1, (self.num_heads, -1))", ".unflatten(-1, (-1, self.num_heads)).mT"),
    ("cores/shell.py", "part.clone() if part.is_inference() else part", "part"),
    ("cores/shell.py", '"step_rule" in vars(owner) and ', ""),
    ("cores/shell.py", " if eps == ff_eps else None", ""),
    ("cores/shell.py", "m in (self, memory)", "m in (memory,)"),
    ("cores/shell.py", "tuple(map(type, modules)) != kinds", "False"),
    ("cores/features.py", "EPSILON = 1e-5", "EPSILON = 1e-2"),
    ("cores/delta_rnn.py", "v, recurrent_k, recurrent_v,", "recurrent_k, v, recurrent_v,"),
    ("cores/rdn.py", "squeeze(-1) + seen", "squeeze(-1) - seen"),
    ("cores/rdn.py", "* h**-0.5", ""),
    ("cores/lstm.py", "y, h, c = lstm(", "y, c, h = lstm("),
    ("cores/base.py", "        check_not_empty(x)\n", ""),
    ("cores/base.py", "0 in x.shape[:2]", "0 in x.shape[:1]"),
    ("cores/feedforward.py", "        check_not_empty(x)\n", ""),
    ("cores/gated_feedforward.py", "        check_not_empty(x)\n", ""),
    ("cores/gated_feedforward.py", "feature_size: ClassVar[int] = 320", "feature_size: ClassVar[int] = 256"),
]


# The tests of a file, by a part of its name.
TESTS = {
    "triton": ("tests/kernels/test_triton.py", "-k", "not compile_for_gpus"),
    "images": ("tests/kernels/test_images.py",),
    "compiling": ("tests/kernels/test_compiling.py",),
    "shapes": ("tests/kernels/test_shapes.py",),
    "kernels/rules.py": ("tests/kernels/test_shapes.py",),
    "dispatch": (
        "tests/kernels/test_shapes.py",
        "tests/kernels/test_backends.py::test_autocast_changes_nothing",
        "tests/kernels/test_backends.py::test_keys_and_strengths",
        "tests/cores/test_own_rule.py",
    ),
    "native/shell": ("tests/kernels/test_dense.py",),
    "native/known": ("tests/kernels/test_known.py",),
    "dense": (
        "tests/kernels/test_dense.py",
        "tests/kernels/test_known.py",
        "tests/kernels/test_backends.py",
        "-k",
        "dense or known or native",
    ),
    "lstm.py": (
        "tests/kernels/test_backends.py",
        "tests/kernels/test_fused.py",
        "tests/kernels/test_dense.py",
        "-k",
        "native-lstm or lstm-native or lstm_step",
    ),
    ".c": ("tests/kernels/test_backends.py", "tests/kernels/test_fused.py", "-k", "native"),
}
OTHERS = ("tests/kernels", "tests/cores", "--ignore=tests/kernels/test_triton.py")


def survives(file: str, old: str, new: str) -> bool:
    with tempfile.TemporaryDirectory() as folder:
        package = Path(folder, "deltabeast")
        package.mkdir()
        (package / "__init__.py").touch()
        for part in ("kernels", "cores"):
            shutil.copytree(ROOT / part, package / part, ignore=shutil.ignore_patterns("__pycache__"))
        source = (package / file).read_text()
        if old not in source:
            raise SystemExit(f"{file} no longer has {old!r}; update the mutant")
        (package / file).write_text(source.replace(old, new, 1))
        tests = next((tests for part, tests in TESTS.items() if part in file), OTHERS)
        path = os.pathsep.join(filter(None, (folder, os.environ.get("PYTHONPATH"))))
        done = subprocess.run(
            [sys.executable, "-m", "pytest", "-qx", "-p", "no:cacheprovider", *tests],
            cwd=ROOT,
            env={**os.environ, "PYTHONPATH": path, "OMP_NUM_THREADS": "1"},
            capture_output=True,
            text=True,
        )
    return done.returncode == 0


def main() -> int:
    mutants = [mutant for mutant in MUTANTS if mutant[0].startswith(tuple(sys.argv[1:]) or "")]
    if not survives(*mutants[0][:2], mutants[0][1]):
        raise SystemExit("the tests fail without any mutation")
    survivors = 0
    for number, (file, old, new) in enumerate(mutants, 1):
        alive = survives(file, old, new)
        survivors += alive
        print(
            f"{number}/{len(mutants)} {'SURVIVES' if alive else 'killed'}: {file}: {old!r} -> {new!r}",
            flush=True,
        )
    return survivors > 0


if __name__ == "__main__":
    raise SystemExit(main())
