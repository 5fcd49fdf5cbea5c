"""What a probe learns from and how: scores, learning rates, clipping, carried states, what is drawn."""

from __future__ import annotations

import math
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import numpy as np
import pytest
import torch

from deltabeast.cores.registry import core_names
from deltabeast.envs.sequences.code import NOTHING
from deltabeast.envs.sequences.sequences import NO_TARGET, Sequences, Task, begins
from deltabeast.launch.config import ProbeConfig
from deltabeast.launch.probe.data import Batch, Fixed, Fresh, Stream, to_batch
from deltabeast.launch.probe.learner import Learner, make_model
from deltabeast.launch.probe.metrics import Scores, loss_of
from deltabeast.launch.probe.recipe import DATA_SEED, Recipe, make_recipe

CPU = torch.device("cpu")
SMALL = {"hidden_size": 16, "num_layers": 1, "num_heads": 2, "ff_size": 16}


def test_scores_by_hand() -> None:
    """Three sequences of four tokens, three classes: all right; a print wrong; the last one wrong."""
    target = torch.tensor([[0, NO_TARGET, 1], [1, 2, NO_TARGET], [2, 0, 0], [NO_TARGET, 1, 2]])
    said = torch.tensor([[0, 1, 1], [1, 1, 1], [2, 0, 0], [1, 1, 0]])
    output = torch.nn.functional.one_hot(said, 3).float()
    scores = Scores()
    loss = loss_of("cross_entropy", output, target)
    scores.add(loss, output, target)
    means = scores.means()
    right = -math.log(math.e / (math.e + 2))
    wrong = -math.log(1 / (math.e + 2))
    assert NOTHING == 0
    assert means["loss"] == pytest.approx((7 * right + 2 * wrong) / 9)
    assert means["perplexity"] == pytest.approx(math.exp(means["loss"]))
    assert means["accuracy"] == pytest.approx(7 / 9)
    assert means["print_accuracy"] == pytest.approx(4 / 6)  # targets 1, 2, 1, 1, 2, 2
    assert means["final_accuracy"] == pytest.approx(2 / 3)
    assert means["sequence_accuracy"] == pytest.approx(1 / 3)
    scores.add(torch.tensor(0.0), output[:, :1], target[:, :1])
    assert scores.means()["loss"] == pytest.approx(means["loss"] * 9 / 12)  # by targets, not by batches
    assert scores.means()["sequence_accuracy"] == pytest.approx(2 / 4)


def test_square_loss_by_hand() -> None:
    output = torch.tensor([[[0.5, 0.5]], [[1.0, 2.0]]])
    target = torch.tensor([[0], [NO_TARGET]])
    assert float(loss_of("square", output, target)) == pytest.approx(0.5 * (0.25 + 0.25))


def test_learning_rates_of_a_schedule() -> None:
    learner = Learner(replace(make_recipe(ProbeConfig("swap", core="lstm")), updates=1128), 1, CPU)
    assert learner.learning_rate(0) == pytest.approx(1e-3 / 128)
    assert learner.learning_rate(127) == pytest.approx(1e-3)
    assert learner.learning_rate(628) == pytest.approx(0.5e-3)
    assert learner.learning_rate(1127) == pytest.approx(1e-6)


def small_code(**options: Any) -> Recipe:
    config = ProbeConfig("code", task_options={"variables": 1, "statements": 4}, core="lstm", batch_size=4)
    return make_recipe(replace(config, core_options={"hidden_size": 8}, **options))


@pytest.mark.parametrize("task", ["retrieval", "swap", "code", "listops", "dag"])
def test_every_core_has_a_model_for_every_task(task: Any) -> None:
    for core in core_names():
        recipe = make_recipe(ProbeConfig(task, core=core, shell="on"))
        with torch.device("meta"):
            make_model(recipe.spec)


def test_only_a_text_is_cut(tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_text("abc " * 200)
    assert make_recipe(ProbeConfig("text", task_options={"path": str(path)})).spec.is_cut
    tasks: Any = ("retrieval", "swap", "code", "listops", "dag")
    assert not any(make_recipe(ProbeConfig(task, core="transformer")).spec.is_cut for task in tasks)


def test_the_variant_decides_how_favor_is_drawn() -> None:
    options = {"feature_map": "favor", "favor_features": 64}
    for variant, shell, core_options, drawn in (
        ("code", "auto", options, "code"),
        ("text", "auto", options, "text"),
        ("code", "on", options, None),
        ("code", "auto", {}, None),
    ):
        config = ProbeConfig(
            "retrieval", variant=variant, core="linear_transformer", core_options=core_options, shell=shell
        )  # type: ignore[arg-type]
        assert make_recipe(config).spec.core_options.get("variant") == drawn


def test_the_fast_weight_memory_with_tanh_learns_as_published() -> None:
    sizes = {}
    for feature_map in ("tanh", "dpfp"):
        config = ProbeConfig(
            "retrieval", core="fast_weight_memory", core_options={"feature_map": feature_map, "dpfp_nu": "2"}
        )
        recipe = make_recipe(config)
        assert recipe.spec.kind == "pairs" and recipe.spec.core_options["dpfp_nu"] == 2
        sizes[feature_map] = recipe.batch_size, recipe.learning_rate
        assert make_recipe(replace(config, batch_size=7)).batch_size == 7
    assert sizes == {"tanh": (128, 1e-4), "dpfp": (32, 1e-3)}


def test_cores_without_a_shell_are_trained_as_the_published_lstm() -> None:
    like = {core: make_recipe(ProbeConfig("code", core=core)) for core in ("lstm", "gru", "rdn")}
    assert like["gru"] == replace(like["lstm"], spec=replace(like["lstm"].spec, core="gru"))
    assert like["lstm"].learning_rate == 3e-3 and like["lstm"].spec.embedding_size == 128
    assert like["rdn"].learning_rate == 3e-4 and like["rdn"].spec.core_options["num_layers"] == 4


def test_a_hybrid_has_the_shell_and_its_learning_rate() -> None:
    """It has no option for the number of layers, which its list of memories says."""
    hybrid = make_recipe(ProbeConfig("listops", core="hybrid"))
    rdn = make_recipe(ProbeConfig("listops", core="rdn"))
    sizes = {"hidden_size": 256, "num_heads": 16, "ff_size": 1024}
    assert hybrid == replace(rdn, spec=replace(rdn.spec, core="hybrid", core_options=sizes))


def test_gradients_are_clipped(seed: int) -> None:
    batch = to_batch(Fresh(small_code(), seed).batch(0), CPU)
    norms = {}
    for given in (None, 0.01, 0.0):
        recipe = small_code(max_grad_norm=given)
        learner = Learner(recipe, seed, CPU)
        learner.update(batch, 0)
        grads = [
            parameter.grad.flatten() for parameter in learner.model.parameters() if parameter.grad is not None
        ]
        norms[given] = float(torch.cat(grads).norm())
    assert norms[None] == pytest.approx(0.1, rel=1e-3), "as published"
    assert norms[0.01] == pytest.approx(0.01, rel=1e-3) and norms[0.0] > 0.1


def test_nothing_is_dropped_from_an_evaluation(seed: int) -> None:
    recipe = small_code()
    recipe = replace(recipe, spec=replace(recipe.spec, dropout=0.9))
    learner, data = Learner(recipe, seed, CPU), Fresh(recipe, seed)
    batches = [to_batch(part, CPU) for part in data.evaluation(0)]
    learner.update(batches[0], 0)
    assert learner.evaluate(batches, 1) == learner.evaluate(batches, 2)


def test_the_state_is_carried_over_in_a_text(seed: int, tmp_path: Path) -> None:
    path = tmp_path / "text"
    path.write_bytes(np.random.default_rng(seed).integers(97, 123, 2000, np.uint8).tobytes())
    config = ProbeConfig("text", task_options={"path": str(path), "span": 5}, core="delta_net", batch_size=3)
    recipe = make_recipe(replace(config, core_options=SMALL, dropout=0.0))
    data, learner = Stream(recipe, seed), Learner(recipe, seed, CPU)
    first, second = (to_batch(data.batch(update), CPU) for update in range(2))
    before = {name: weight.clone() for name, weight in learner.model.state_dict().items()}
    learner.update(first, 0)
    assert learner.state is not None and not any(part.requires_grad for part in learner.state)
    after = {name: weight.clone() for name, weight in learner.model.state_dict().items()}
    assert any(not torch.equal(before[name], after[name]) for name in before)
    loss, _ = learner.update(second, 1)
    alone = Learner(recipe, seed, CPU)
    alone.model.load_state_dict(after)
    other, _ = alone.update(second, 1)
    assert float(loss) != float(other)
    # An evaluation carries its own.
    whole = Batch(
        *(torch.cat(parts) for parts in zip(vars(first).values(), vars(second).values(), strict=True))
    )
    in_parts, at_once = alone.evaluate([first, second], 0), alone.evaluate([whole], 0)
    assert in_parts["loss"] == pytest.approx(at_once["loss"], rel=1e-5)


def test_what_is_drawn_depends_on_the_seed_the_update_and_what_it_is_for() -> None:
    recipe = make_recipe(ProbeConfig("swap", task_options={"length": 6, "longest": 6}, batch_size=64))
    drawn = {
        "first": Fresh(recipe, 1).batch(0),
        "second": Fresh(recipe, 1).batch(1),
        "other seed": Fresh(recipe, 2).batch(0),
        "evaluation": Fresh(recipe, 1).evaluation(0)[0],
        "later evaluation": Fresh(recipe, 1).evaluation(1)[0],
    }
    assert np.array_equal(Fresh(recipe, 1).batch(0).tokens, drawn["first"].tokens)
    # An evaluation is larger: the same numbers would begin its first row.
    tokens = {sample.tokens[0, :64].tobytes() for sample in drawn.values()}
    assert len(tokens) == len(drawn)


def test_an_epoch_reads_everything_once() -> None:
    config = ProbeConfig("listops", task_options={"depth": 2}, batch_size=8)
    recipe = make_recipe(config)
    recipe = replace(recipe, fixed=(20, 5, 6))
    data = Fixed(recipe, 1)
    epochs = [[data.batch(3 * epoch + i) for i in range(3)] for epoch in range(2)]
    read = [
        sorted(tuple(column) for batch in epoch for column in batch.tokens.T.tolist()) for epoch in epochs
    ]
    assert read[0] == read[1] and len(read[0]) == 20
    assert not np.array_equal(epochs[0][0].tokens, epochs[1][0].tokens)
    other = Fixed(recipe, 2)
    assert not np.array_equal(other.batch(0).tokens, data.batch(0).tokens)
    rng, task = np.random.default_rng(DATA_SEED), cast("Task", recipe.task)
    _, valid, test = (task.sample(rng, size) for size in (20, 5, 6))
    for run in (data, other):
        for kept, expected in ((run.evaluation(0), valid), (run.test(), test)):
            found = np.concatenate([part.tokens for part in kept], 1)
            assert np.array_equal(found, expected.tokens)


def test_a_batch_ends_with_the_last_target() -> None:
    target = np.full((5, 2), NO_TARGET)
    target[2, 0] = target[3, 1] = 1
    batch = to_batch(Sequences(np.arange(10).reshape(5, 2), begins(5, 2), target), CPU)
    assert batch.tokens.tolist() == [[0, 1], [2, 3], [4, 5], [6, 7]] and batch.reset.shape == (4, 2)
    assert batch.target.tolist() == target[:4].tolist()
