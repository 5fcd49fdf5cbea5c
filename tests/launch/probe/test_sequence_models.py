"""Models of sequences against loops of their papers, in float64."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor

from deltabeast.envs.sequences import Retrieval
from deltabeast.launch.probe.key_value_model import KEY_SIZE, KeyValueModel
from deltabeast.launch.probe.sequence_model import MemoryModel, SequenceModel, SequenceSpec, TokenEmbedding

SMALL = {"hidden_size": 16, "num_layers": 2, "num_heads": 2, "ff_size": 24}


def drawn(seed: int, steps: int = 7, rows: int = 3, vocabulary: int = 6) -> tuple[Tensor, Tensor]:
    tokens = torch.from_numpy(np.random.default_rng(seed).integers(vocabulary, size=(steps, rows)))
    reset = torch.zeros(steps, rows, dtype=torch.bool)
    reset[0] = True
    return tokens, reset


@pytest.mark.parametrize("core", ["rdn", "lstm", "softmax_attention"])
def test_a_sequence_in_parts_is_the_whole(core: str, seed: int) -> None:
    options = {"hidden_size": 16} if core == "lstm" else SMALL
    model = SequenceModel(SequenceSpec("core", (6,), 4, core, options, is_cut=True)).eval()
    tokens, reset = drawn(seed)
    with torch.no_grad():
        whole, _ = model(tokens, reset)
        first, state = model(tokens[:4], reset[:4])
        second, _ = model(tokens[4:], reset[4:], state)
    torch.testing.assert_close(torch.cat((first, second)), whole, rtol=1e-4, atol=1e-5)
    assert whole.shape == (7, 3, 4)


NARROW: dict[str, Any] = {"hidden_size": 8, "num_heads": 2, "ff_size": 6}


def attention_in_loops(model: SequenceModel, tokens: Tensor, window: int) -> Tensor:
    """The whole model for one sequence: a step at a time, a head at a time, of `window` earlier steps."""
    core: Any = model.core
    x = model.embedding(tokens)
    if core.clock:
        phases = 2 * torch.pi * torch.arange(len(x)).double().unsqueeze(-1) / 2.0 ** torch.arange(2, 12)
        x = torch.cat((x, phases.cos(), phases.sin()), -1)
    x = core.input_proj(x)
    for layer in core.layers:
        q, k, v = layer.memory.slow_net(layer.norm(x)).view(-1, 2, 3, 4).unbind(2)
        reads = []
        for t in range(len(x)):
            seen = slice(max(t - window, 0), t + 1)
            heads = [((k[seen, n] @ q[t, n]) / 4**0.5).softmax(0) @ v[seen, n] for n in range(2)]
            reads.append(torch.cat(heads))
        x = x + layer.out(torch.stack(reads))
        x = x + layer.ff(layer.ff_norm(x))
    return model.head(x)


@pytest.mark.parametrize(
    ("core", "options", "window"),
    [
        ("softmax_attention", {}, None),
        ("softmax_attention", {"window": 5}, 5),
        ("transformer", {}, None),
        ("transformer", {"window": 5}, 5),
        ("hybrid", {"layers": "softmax_attention,softmax_attention"}, None),
    ],
)
def test_attention_sees_all_of_a_sequence_or_the_window_given(
    core: str, options: dict[str, Any], window: int | None, seed: int
) -> None:
    """Of sequences longer than the cores' own windows, of 64 and 256 steps, of a short one, of one step."""
    layers = {} if core == "hybrid" else {"num_layers": 2}
    model = SequenceModel(SequenceSpec("core", (6,), 4, core, {**NARROW, **layers, **options})).double()
    for steps in (270, 9, 1):
        tokens, reset = drawn(seed, steps, 2)
        with torch.no_grad():
            logits, _ = model(tokens, reset)
            for row in range(2):
                expected = attention_in_loops(model, tokens[:, row], steps if window is None else window)
                torch.testing.assert_close(logits[:, row], expected, rtol=1e-9, atol=1e-11)


@pytest.mark.parametrize(
    ("core", "options", "window"),
    [
        ("deltaformer", {}, 80),
        ("gtrxl", {}, 64),
        ("softmax_attention", {"positions": True}, 64),
        ("softmax_attention", {"window": 70}, 70),
    ],
)
def test_which_window_a_whole_sequence_has(
    core: str, options: dict[str, Any], window: int, seed: int
) -> None:
    """Weights that belong to ages stay with the window that they were made for."""
    options = {**NARROW, "num_layers": 1, **options}
    model = SequenceModel(SequenceSpec("core", (6,), 4, core, options)).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.normal_()
    tokens, reset = drawn(seed, 80)
    logits = model(tokens, reset)[0]
    same = []
    for other in {window} if "positions" in options else {64, 70, 80}:
        given = SequenceModel(SequenceSpec("core", (6,), 4, core, {**options, "window": other})).double()
        given.load_state_dict(model.state_dict())
        if torch.allclose(given(tokens, reset)[0], logits, rtol=1e-9, atol=1e-11):
            same.append(other)
    assert same == [window]


@pytest.mark.parametrize(
    ("layers", "windows"),
    [
        ("kda,deltaformer:head_norm=true", [80]),
        ("softmax_attention:positions=true,kda", [64]),
        ("softmax_attention:window=70,softmax_attention", [70, 80]),
        ("deltaformer:window=3,gtrxl", [3, 64]),
    ],
)
def test_which_window_each_layer_of_a_hybrid_has(layers: str, windows: list[int], seed: int) -> None:
    model = SequenceModel(SequenceSpec("core", (6,), 4, "hybrid", {**NARROW, "layers": layers}))
    model(*drawn(seed, 80))
    memories: Any = model.core.memories()  # type: ignore[operator]
    assert [memory.window for memory in memories if hasattr(memory, "window")] == windows


@pytest.mark.parametrize("core", ["softmax_attention", "deltaformer", "transformer"])
def test_a_text_in_spans_goes_on_with_its_window(core: str, seed: int) -> None:
    """Spans shorter than the window, whose state is carried over, are one unroll of the core as it is."""
    options = {**NARROW, "num_layers": 1, **({"window": 20} if core == "transformer" else {})}
    spec = SequenceSpec("core", (6,), 4, core, options, is_cut=True)
    model = SequenceModel(spec).double().eval()
    window = options.get("window", 64)
    tokens, reset = drawn(seed, 90)
    with torch.no_grad():
        whole, _ = model.core.unroll(model.embedding(tokens), model.core.initial_state(3), reset)
        parts, state = [], None
        for start in range(0, 90, 15):
            span = slice(start, start + 15)
            logits, state = model(tokens[span], reset[span], state)
            assert state[0].shape[3] == window
            parts.append(logits)
        torch.testing.assert_close(torch.cat(parts), model.head(whole), rtol=1e-9, atol=1e-11)
        everything = SequenceModel(replace(spec, is_cut=False)).double().eval()
        everything.load_state_dict(model.state_dict())
        differs = not torch.allclose(everything(tokens, reset)[0], torch.cat(parts))
        assert differs == ("window" not in options)


@pytest.mark.parametrize("core", ["delta_net", "lstm"])
def test_dropout(core: str, seed: int) -> None:
    """It is drawn anew for every batch in training, and off in evaluation, where the model is the plain
    one."""
    options = {"hidden_size": 16} if core == "lstm" else SMALL
    plain = SequenceModel(SequenceSpec("core", (6,), 4, core, options))
    model = SequenceModel(SequenceSpec("core", (6,), 4, core, options, dropout=0.5))
    model.load_state_dict(plain.state_dict())
    tokens, reset = drawn(seed)
    with torch.no_grad():
        one, other = model(tokens, reset)[0], model(tokens, reset)[0]
        assert not torch.equal(one, other)
        torch.testing.assert_close(model.eval()(tokens, reset)[0], plain.eval()(tokens, reset)[0])


def test_the_listing_of_the_delta_former(seed: int) -> None:
    """One layer without shell, grouped queries, scalar gates: x + out(o), step by step."""
    options = {"hidden_size": 12, "num_heads": 4, "groups": 4, "gates": "scalar", "window": 8,
               "first": "linear", "second": "softmax"}  # fmt: skip
    model = MemoryModel(SequenceSpec("memory", (10,), 5, "deltaformer", options)).double()
    with torch.no_grad():
        model.memory.alpha.fill_(0.7)
        model.memory.beta.fill_(0.4)
    tokens, reset = drawn(seed, vocabulary=10)
    logits, _ = model(tokens, reset)
    for row in range(tokens.shape[1]):
        x = model.embedding(tokens[:, row])
        emitted = model.memory.slow_net(x)
        q, k, v, w = torch.split(emitted, (12, 3, 3, 12), -1)
        written: list[Tensor] = []
        for t in range(len(tokens)):
            u = 0.7 * v[t]
            for i in range(t):
                heads = [model.memory.mix[0, j] * (k[i] @ w[t, 3 * j : 3 * j + 3]) / 3**0.5 for j in range(4)]
                u = u - 0.4 * sum(heads) / 4 * written[i]
            written.append(u)
            reads = []
            for j in range(4):
                scores = torch.stack([k[i] @ q[t, 3 * j : 3 * j + 3] / 3**0.5 for i in range(t + 1)])
                reads.append(scores.softmax(0) @ torch.stack(written))
            expected = model.head(x[t] + model.out(torch.cat(reads)))
            torch.testing.assert_close(logits[t, row], expected)


def test_a_core_without_a_memory_is_refused() -> None:
    with pytest.raises(ValueError, match="lstm has no memory that could stand without a backbone"):
        MemoryModel(SequenceSpec("memory", (6,), 4, "lstm"))


@pytest.mark.parametrize(
    ("core", "options"),
    [
        ("linear_transformer", {}),
        ("linear_transformer", {"feature_map": "dpfp", "dpfp_nu": 2}),
        ("delta_net", {"feature_map": "dpfp"}),
        ("delta_net", {}),
        ("softmax_attention", {}),
        ("fast_weight_memory", {"feature_map": "tanh"}),
        ("fast_weight_memory", {"feature_map": "dpfp", "dpfp_nu": 2}),
    ],
)
def test_retrieval_reads_what_the_rule_stored(core: str, options: dict[str, object], seed: int) -> None:
    """The rules of Schlag et al. 2021 in a loop over pairs, with attention normalisation or sums of
    features."""
    task = Retrieval(5, 2)
    sample = task.sample_all(np.random.default_rng(seed), 3)
    model = KeyValueModel(SequenceSpec("pairs", task.symbols, 5, core, options)).double()
    tokens, reset = torch.from_numpy(sample.tokens), torch.from_numpy(sample.reset)
    output, state = model(tokens, reset)
    assert state == ()
    pairs = len(tokens) - (sample.target != -1).any(1).sum()
    assert not output[:pairs].any()
    for row in range(3):
        keys, values = tokens[:, row] // 6, tokens[:, row] % 6
        embedded = model.keys(keys)
        x = torch.cat((embedded[:pairs], torch.eye(5).double()[values[:pairs]]), -1)
        k, beta = model.to_k(x), model.to_beta(x).sigmoid()
        for t in range(int(pairs), len(tokens)):
            q = model.to_q(embedded[t])
            if core == "softmax_attention":
                weights = ((k @ q) / KEY_SIZE**0.5).softmax(0)
                expected = sum(w * torch.eye(5).double()[v] for w, v in zip(weights, values, strict=False))
            else:
                W, z = torch.zeros(5, model.features.size).double(), torch.zeros(model.features.size).double()
                for i in range(int(pairs)):
                    phi, v = model.features(k[i]), torch.eye(5).double()[values[i]]
                    if core == "delta_net":
                        phi = phi / phi.sum()
                        W = W + torch.outer(beta[i] * (v - W @ phi), phi)
                    elif core == "fast_weight_memory" and i == 0:
                        W = torch.outer(v, beta[i] * phi)
                    elif core == "fast_weight_memory":
                        found = W @ phi
                        W = W - torch.outer(found, phi)
                        W = W + torch.outer(beta[i] * v + (1 - beta[i]) * found, phi)
                        W = W / ((W.square().sum().sqrt() - 1).relu() + 1)
                        assert W.norm() < 1 + 1e-12
                    else:
                        W, z = W + torch.outer(v, phi), z + phi
                phi = model.features(q)
                if core == "fast_weight_memory":
                    read = W @ phi
                    expected = (read - read.mean()) / (read.var(correction=0) + 1e-5).sqrt()
                else:
                    expected = W @ phi / ((phi.sum() if core == "delta_net" else z @ phi) + 1e-6)
            torch.testing.assert_close(output[t, row], expected)


@pytest.mark.parametrize("feature_map", ["tanh", "dpfp"])
@pytest.mark.parametrize("length", [1.0, 30.0])
def test_the_fast_weight_memory_is_bounded_and_differentiable(
    feature_map: str, length: float, seed: int
) -> None:
    """Long keys would make W explode. What is read is of W before the layer norm, whose variance is 1."""
    task = Retrieval(9, 2)
    sample = task.sample_all(np.random.default_rng(seed), 4)
    spec = SequenceSpec("pairs", task.symbols, 9, "fast_weight_memory", {"feature_map": feature_map})
    model = KeyValueModel(spec)
    with torch.no_grad():
        model.to_k.weight *= length
    output, _ = model(torch.from_numpy(sample.tokens), torch.from_numpy(sample.reset))
    read = output[torch.from_numpy(sample.target != -1)]
    assert read.isfinite().all() and read.mean(-1).abs().max() < 1e-4
    assert read.var(-1, correction=0).max() < 1 + 1e-4
    read[:, 0].square().sum().backward()
    for parameter in model.parameters():
        assert parameter.grad is not None and parameter.grad.isfinite().all() and parameter.grad.any()


def test_favor_is_drawn_as_code_or_text_has_it(seed: int) -> None:
    """Code: orthogonal, at every forward pass. Text: independent, for every batch of training; fixed for
    evaluations."""
    task = Retrieval(5)
    sample = task.sample(np.random.default_rng(seed), 3)
    given = torch.from_numpy(sample.tokens), torch.from_numpy(sample.reset)
    options = {"feature_map": "favor", "favor_features": 32}
    for variant, anew in ((None, (False, False)), ("code", (True, True)), ("text", (True, False))):
        more = {} if variant is None else {"variant": variant}
        spec = SequenceSpec("pairs", task.symbols, 5, "linear_transformer", {**options, **more})
        model = KeyValueModel(spec)
        fixed = model.features.random
        assert fixed is not None
        assert ((fixed @ fixed.T).triu(1).abs().max() < 1e-3).item() is (variant != "text")
        with torch.no_grad():
            first = model.eval()(*given)[0]
            for training, changes in zip((True, False), anew, strict=True):
                one, other = (model.train(training)(*given)[0] for _ in range(2))
                assert torch.equal(one, other) is not changes
            assert torch.equal(model.eval()(*given)[0], first) is not anew[1]


@pytest.mark.parametrize("rule", ["linear_transformer", "delta_net"])
def test_features_that_may_sum_to_0_are_refused(rule: str) -> None:
    with pytest.raises(ValueError, match=f"tanh has entries of any sign.*and {rule} alone divides by it"):
        KeyValueModel(SequenceSpec("pairs", (5, 6), 5, rule, {"feature_map": "tanh"}))


def test_a_token_is_the_sum_of_its_symbols(seed: int) -> None:
    embedding = TokenEmbedding((3, 4), 5)
    tokens = torch.arange(12).view(2, 6)
    first, second = (rows.weight for rows in embedding.rows)
    expected = torch.stack([first[i] + second[j] for i in range(3) for j in range(4)]).view(2, 6, 5)
    assert torch.equal(embedding(tokens), expected)
