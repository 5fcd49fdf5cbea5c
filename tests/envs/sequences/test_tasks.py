"""Every task against an interpreter of its own: one sequence at a time, by the rules of the papers."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from itertools import combinations
from types import SimpleNamespace
from typing import Any, Literal, cast

import numpy as np
import pytest

from deltabeast.envs.sequences.code import HIGHEST, LOWEST, NOTHING, Code, _Program
from deltabeast.envs.sequences.dag import Reachability
from deltabeast.envs.sequences.listops import TOKENS, ListOps
from deltabeast.envs.sequences.retrieval import Retrieval
from deltabeast.envs.sequences.sequences import NO_TARGET, Sequences, Task
from deltabeast.envs.sequences.swap import Swap

SAMPLES = 1000


def columns(sample: Sequences) -> list[tuple[list[int], list[int]]]:
    """Return tokens and targets of each sequence."""
    return [
        (list(a), list(b)) for a, b in zip(sample.tokens.T.tolist(), sample.target.T.tolist(), strict=True)
    ]


def swapped(tokens: list[int], swaps: int = 1) -> list[int]:
    row, answers = list("abcde"), []
    pairs = list(combinations(range(5), 2))
    for token in tokens:
        for digit in f"{token:0{swaps}}":  # there are ten pairs
            i, j = pairs[int(digit)]
            row[i], row[j] = row[j], row[i]
        answers.append("abcde".index(row[0]))
    return answers


def retrieved(size: int) -> Callable[[list[int]], list[int]]:
    def answer(tokens: list[int]) -> list[int]:
        known: dict[int, int] = {}
        answers = []
        for token in tokens:
            key, value = divmod(token, size + 1)
            answers.append(known.get(key, NO_TARGET) if value == size else NO_TARGET)
            if value < size:
                known[key] = value
        return answers

    return answer


def calculated(tokens: list[int]) -> list[int]:
    """Evaluate with a stack, as a calculator would."""
    stack: list[list[object]] = [[]]
    answers = []
    for token in tokens:
        word = TOKENS[token]
        if word.isdigit():
            stack[-1].append(int(word))
        elif word == "]":
            function, *numbers = stack.pop()
            stack[-1].append(function(numbers))  # type: ignore[operator]
        else:
            functions = {"[MIN": min, "[MAX": max, "[FIRST": lambda numbers: numbers[0]}
            stack.append([functions[word]])
        done = len(stack) == 1
        answers.append(stack[0][0] if done else NO_TARGET)
        if done:
            break
    return [*answers, *[NO_TARGET] * (len(tokens) - len(answers))]  # type: ignore[list-item]


def executed(task: Code) -> Callable[[list[int]], list[int]]:
    """Execute a program word by word, with the published generator's fault if the task has it."""

    def answer(tokens: list[int]) -> list[int]:
        words = [task.tokens[token] for token in tokens]
        values: dict[str, int] = {}
        answers: list[int] = []
        at = statements = 0
        while statements < task.statements:
            statements += 1
            start, holds, under = at, True, words[at] == "if"
            if under:
                name, sign, limit = words[at + 1 : at + 4]
                holds = values[name] > int(limit) if sign == ">" else values[name] < int(limit)
                at += 5
            said = NOTHING
            if words[at] == "print":
                said = 1 + values[words[at + 1]] - LOWEST if holds else NOTHING
                at += 3
            elif words[at + 1] == "=":
                if holds and not (under and task.variant == "code" and words[at] in values):
                    values[words[at]] = int(words[at + 2])
                at += 4
            else:
                if holds:
                    values[words[at]] += 1 if words[at + 1] == "++" else -1
                at += 3
            answers += [NOTHING] * (at - start - 1) + [said]
        assert all(LOWEST <= value <= HIGHEST for value in values.values())
        return [*answers, *[NO_TARGET] * (len(tokens) - len(answers))]

    return answer


def descended(tokens: list[int]) -> list[int]:
    parents = [token % 32 for token in tokens]
    assert [token // 32 for token in tokens] == list(range(32))
    answers = []
    for node in range(32):
        while parents[node] != node:
            assert parents[node] < node
            node = parents[node]
        answers.append(int(node == 0))
    assert sum(answers) == 16
    return answers


CASES: dict[str, tuple[Task, Callable[[list[int]], list[int]]]] = {
    "swap": (Swap(16), swapped),
    "swap 2": (Swap(16, swaps=2), partial(swapped, swaps=2)),
    "swap 3": (Swap(40, swaps=3), partial(swapped, swaps=3)),
    "retrieval 1": (Retrieval(20, 1), retrieved(20)),
    "retrieval 2": (Retrieval(20, 2), retrieved(20)),
    "listops 3": (ListOps(3), calculated),
    "listops 10": (ListOps(10), calculated),
    "code": (Code(3, 20), executed(Code(3, 20))),
    "code, 5 variables": (Code(5, 20), executed(Code(5, 20))),
    "code, text": (Code(3, 20, "text"), executed(Code(3, 20, "text"))),
    "dag": (Reachability(32), descended),
}


@pytest.mark.parametrize("name", CASES)
def test_targets(name: str, seed: int) -> None:
    task, answer = CASES[name]
    sample = task.sample(np.random.default_rng(seed), SAMPLES)
    assert sample.tokens.min() >= 0 and sample.tokens.max() < np.prod(task.symbols)
    assert sample.target.max() < task.classes
    assert sample.reset[0].all() and not sample.reset[1:].any()
    for tokens, target in columns(sample):
        assert target == answer(tokens)


def test_two_swaps_a_token_by_hand() -> None:
    """Of a, b, c: (0, 1) then (1, 2), (0, 2) twice, (1, 2) then (0, 1)."""
    drawn = np.array([[[0], [2]], [[1], [1]], [[2], [0]]])  # T, swaps, B
    sample = Swap(3, 3, swaps=2).sample(cast(Any, SimpleNamespace(integers=lambda *_, size: drawn)), 1)
    assert sample.tokens[:, 0].tolist() == [0 * 3 + 2, 1 * 3 + 1, 2 * 3 + 0]
    # abc -> bac -> bca; bca -> acb -> bca; bca -> bac -> abc
    assert sample.target[:, 0].tolist() == [1, 1, 0]


def test_one_swap_a_token_is_drawn_as_before(seed: int) -> None:
    """Runs that began before `swaps` go on with the sequences they would have had."""
    sample = Swap(7).sample(np.random.default_rng(seed), 5)
    assert np.array_equal(sample.tokens, np.random.default_rng(seed).integers(10, size=(7, 5)))


@pytest.mark.parametrize("name", CASES)
def test_the_seed_alone_decides(name: str, seed: int) -> None:
    task, _ = CASES[name]
    first, again, other = (task.sample(np.random.default_rng(seed + i), 5) for i in (0, 0, 1))
    assert all(map(np.array_equal, first, again))
    assert first.tokens.shape != other.tokens.shape or not np.array_equal(first.tokens, other.tokens)


def test_everything_that_can_be_asked_is(seed: int) -> None:
    """Vocabularies are no larger than what is drawn."""
    for name, (task, _) in CASES.items():
        if name == "dag":  # a parent comes before its child, so half of the pairs are none
            continue
        sample = task.sample(np.random.default_rng(seed), SAMPLES)
        assert set(np.unique(sample.tokens)) == set(range(np.prod(task.symbols))), name
        classes = set(np.unique(sample.target)) - {NO_TARGET}
        assert classes <= set(range(task.classes)) and len(classes) >= min(task.classes, 10), name


def nesting(tokens: list[int]) -> int:
    deepest = depth = 0
    for token in tokens:
        depth += (TOKENS[token][0] == "[") - (TOKENS[token] == "]")
        deepest = max(deepest, depth)
        if depth == 0:
            break
    return deepest


@pytest.mark.parametrize("depth", [1, 2, 5, 15, 19])
def test_listops_are_as_deep_as_asked(depth: int, seed: int) -> None:
    sample = ListOps(depth).sample(np.random.default_rng(seed), 50)
    assert all(nesting(tokens) == depth for tokens, _ in columns(sample))


def test_listops_are_drawn_as_published(seed: int) -> None:
    """Lengths are distributed as those of lists drawn until one is as deep: means and deciles agree."""
    rng = np.random.default_rng(seed)

    def draw(depth: int) -> tuple[int, int]:
        """Return the length and the depth of a list, without its values."""
        if depth > 1 and (depth == 20 or rng.random() < 0.75):
            return 1, depth
        parts = [draw(depth + 1) for _ in range(rng.integers(2, 6))]
        return 2 + sum(length for length, _ in parts), max(deepest for _, deepest in parts)

    drawn = [length for length, deepest in (draw(1) for _ in range(20_000)) if deepest == 4]
    sample = ListOps(3).sample(rng, 4000)
    lengths = (sample.target != NO_TARGET).argmax(0) + 1
    error = np.std(drawn) * (1 / len(drawn) + 1 / len(lengths)) ** 0.5
    assert abs(np.mean(drawn) - lengths.mean()) < 5 * error
    for share in (0.1, 0.5, 0.9):
        assert abs(np.quantile(drawn, share) - np.quantile(lengths, share)) <= 4


def test_code_is_as_long_as_published(seed: int) -> None:
    sample = Code(3, 100).sample(np.random.default_rng(seed), 300)
    lengths = (sample.target != NO_TARGET).sum(0)
    assert lengths.min() > 380 and lengths.max() < 550 and abs(lengths.mean() - 458) < 8


@pytest.mark.parametrize("end", [LOWEST, HIGHEST])
def test_code_turns_around_at_the_ends(end: int, seed: int) -> None:
    task = Code(1, 2)
    for _ in range(20):
        program = _Program(task, np.random.default_rng(seed))
        program._values["x"] = end
        before = len(program.tokens)
        program._count(executed=True)
        step = 1 if end == LOWEST else -1
        words = [task.tokens[token] for token in program.tokens[before:]]
        assert words == ["x", "++" if step > 0 else "--", ";"] and program._values == {"x": end + step}
        seed += 1


def test_trees_are_shuffled_and_grow_at_any_node(seed: int) -> None:
    sample = Reachability(32).sample(np.random.default_rng(seed), 4000)
    # Of the 31 nodes behind the first, 15 are in its tree, wherever they stand.
    assert np.allclose(sample.target[1:].mean(1), 15 / 31, atol=0.05)
    ours = sample.target[31] == 1
    parents = sample.tokens[31, ours] % 32
    assert np.allclose((parents == 0).mean(), 1 / 15, atol=0.03)


def test_the_fault_of_the_published_code(seed: int) -> None:
    """An assignment under a condition that holds: the published targets ignore it, the text's do not."""
    programs = columns(Code(3, 40, "code").sample(np.random.default_rng(seed), 200))

    def agree(variant: Literal["code", "text"], tokens: list[int], target: list[int]) -> bool:
        try:
            return executed(Code(3, 40, variant))(tokens) == target
        except KeyError:  # another condition held, and a variable was never assigned
            return False

    assert all(agree("code", *program) for program in programs)
    assert np.mean([agree("text", *program) for program in programs]) < 0.9


def test_retrieval_evaluates_every_key(seed: int) -> None:
    rng = np.random.default_rng(seed)
    for setting, variant, pairs in ((1, "code", 30), (2, "code", 30), (2, "text", 60)):
        task = Retrieval(30, setting, variant)
        sample = task.sample_all(rng, 20)
        for tokens, target in columns(sample):
            keys = {token // 31 for token in tokens[:pairs]}
            asked = [token // 31 for token, answer in zip(tokens, target, strict=True) if answer != NO_TARGET]
            assert sorted(asked) == sorted(keys)
            answers = retrieved(30)(tokens)
            assert all(b in (NO_TARGET, a) for a, b in zip(answers, target, strict=True))
            assert all(token % 31 < 30 for token in tokens[:pairs])
    assert (Retrieval(300, 1).sample_all(rng, 1).target != NO_TARGET).sum() == 200


def test_frequent_keys_are_asked_for_more_often(seed: int) -> None:
    """A query is that of a pair drawn among all: in setting 2 the chance of a key is its share of the
    pairs."""
    task = Retrieval(2, 2)
    sample = task.sample(np.random.default_rng(seed), 4000)
    keys, query = sample.tokens[:-1] // 3, sample.tokens[-1] // 3
    assert abs((keys == query).mean() - ((keys == 0).mean(0) ** 2 + (keys == 1).mean(0) ** 2).mean()) < 0.02


@pytest.mark.parametrize(
    "wrong",
    [
        lambda: Swap(0),
        lambda: Swap(5, 1),
        lambda: Swap(swaps=0),
        lambda: Swap(swaps=19),
        lambda: Swap(elements=2, swaps=10**9),
        lambda: Retrieval(1),
        lambda: ListOps(20),
        lambda: ListOps(0),
        lambda: Code(6),
        lambda: Code(3, 1),
        lambda: Reachability(7),
    ],
)
def test_what_cannot_be(wrong: Callable[[], object]) -> None:
    with pytest.raises(ValueError, match=r"^\w.*"):
        wrong()
