"""A core's options as its constructor declares them: what is offered, read, checked and refused."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import pytest
import torch

from deltabeast.cores import Core, FastWeightCore, core_names, make_core, registry
from deltabeast.cores.delta_net import DeltaMemory
from deltabeast.cores.hybrid import normalize_layers
from deltabeast.cores.options import Normalized, Option, options_of
from deltabeast.cores.registry import find_core, non_default_options, read_core_options


class Every(Core):
    """A core with an option of every type.

    Args:
        input_size: width of the input vectors.
        size: width of the output,
            in units.
        scale (float): what it is scaled by.
    """

    def __init__(
        self,
        input_size: int,
        size: int,
        scale: float = 1.0,
        gate: bool = False,
        name: str = "a",
        mode: Literal["sum", "delta"] = "delta",
        order: Literal[1, 2] = 1,
        limit: int | None = None,
    ) -> None:
        super().__init__(input_size, size)
        self.given = {"size": size, "scale": scale, "gate": gate, "name": name, "mode": mode, "order": order,
                      "limit": limit}  # fmt: skip

    def initial_state(self, batch_size: int, device: Any = None) -> Any:
        return ()

    def unroll(self, x: torch.Tensor, state: Any, reset: torch.Tensor) -> Any:
        return x, state


class Bare(Every):
    """A core without options."""

    def __init__(self, input_size: int) -> None:
        super().__init__(input_size, input_size)


class Free(Every):
    """A core that declares no types, as somebody's own may."""

    def __init__(self, input_size, size=64, **others):  # type: ignore[no-untyped-def]
        super().__init__(input_size, 3)
        self.given = {"size": size, **others}


def in_lower_case(name: str) -> str:
    if name == "?":
        raise ValueError("name: a question")
    return name.lower()


class Named(Every):
    """A core whose names may be written in capitals."""

    def __init__(
        self, input_size: int, name: Annotated[str, "unused", Normalized(in_lower_case)] = "A"
    ) -> None:
        super().__init__(input_size, 1, name=name)


class Noted(Every):
    """A core whose annotations say more than types, as others' may."""

    def __init__(
        self,
        input_size: int,
        size: Annotated[int, str] = 3,
        limit: Annotated[int, "in steps"] | None = None,
        any_of: Any = 1,
        sloppy: int = "auto",  # type: ignore[assignment]
    ) -> None:
        super().__init__(input_size, size, limit=limit)


class KeyedMemory(DeltaMemory):
    """A memory with options.

    Args:
        feature_map: what keys pass.
        num_heads: not offered, since the core gives it.
        num_layers: not offered, since the core's own comes first.
    """

    def __init__(
        self,
        hidden_size: int,
        num_heads: int,
        feature_map: Literal["elu", "softmax"] = "elu",
        num_layers: bool = False,
    ) -> None:
        super().__init__(hidden_size, num_heads)


class Handing(FastWeightCore):
    """A core that hands options on to its memory."""

    memory = KeyedMemory

    def __init__(
        self, input_size: int, hidden_size: int = 8, num_layers: int = 1, **memory_options: Any
    ) -> None:
        super().__init__(input_size, hidden_size, num_layers, num_heads=2, ff_size=8)
        self.handed = memory_options


@pytest.fixture(autouse=True)
def cores(monkeypatch: pytest.MonkeyPatch) -> None:
    mine: dict[str, type[Core]] = {
        "every": Every,
        "bare": Bare,
        "free": Free,
        "named": Named,
        "noted": Noted,
        "handing": Handing,
    }
    monkeypatch.setattr(registry, "_FACTORIES", {**registry._FACTORIES, **mine})


@pytest.mark.parametrize(
    ("word", "option", "value"),
    [
        ("8", "size", 8),
        ("-3", "size", -3),
        ("2", "scale", 2.0),
        ("1e-3", "scale", 1e-3),
        ("1", "gate", True),
        ("0", "gate", False),
        ("true", "gate", True),
        ("False", "gate", False),
        ("b", "name", "b"),
        ("007", "name", "007"),
        ("1e3", "name", "1e3"),
        ("true", "name", "true"),
        ("nan", "name", "nan"),
        ("sum", "mode", "sum"),
        ("2", "order", 2),
        ("none", "limit", None),
        ("4", "limit", 4),
    ],
)
def test_a_word_is_read_as_the_declared_type(word: str, option: str, value: object) -> None:
    read = read_core_options("every", {"size": "1", option: word})
    assert read[option] == value and type(read[option]) is type(value)
    assert read_core_options("every", {name: str(each) for name, each in read.items()}) == read
    made = make_core("every", 5, **read)
    assert made.given[option] == value  # type: ignore[index, operator]


@pytest.mark.parametrize(
    ("option", "word", "takes"),
    [
        ("size", "8.5", "a whole number"),
        ("size", "true", "a whole number"),
        ("size", "", "a whole number"),
        ("scale", "fast", "a number"),
        ("scale", "nan", "a number"),
        ("scale", "inf", "a number"),
        ("gate", "2", "true or false"),
        ("gate", "yes", "true or false"),
        ("mode", "add", "one of sum, delta"),
        ("order", "3", "one of 1, 2"),
        ("limit", "much", "a whole number or none"),
    ],
)
def test_a_wrong_value_is_told_with_what_is_taken(option: str, word: str, takes: str) -> None:
    with pytest.raises(ValueError, match="takes") as raised:
        read_core_options("every", {"size": "1", option: word})
    assert str(raised.value) == f"core 'every': {option} is {word!r}; it takes {takes}"


@pytest.mark.parametrize(
    ("options", "said"),
    [
        ({"size": "8"}, "size is '8'; it takes a whole number"),
        ({"size": True}, "size is True; it takes a whole number"),
        ({"size": 8.0}, "size is 8.0; it takes a whole number"),
        ({"size": 8, "name": 3}, "name is 3; it takes text"),
        ({"size": 8, "scale": float("nan")}, "scale is nan; it takes a number"),
        ({"size": 8, "gate": 2}, "gate is 2; it takes true or false"),
        ({"size": 8, "order": True}, "order is True; it takes one of 1, 2"),
    ],
)
def test_python_is_held_to_the_declared_types(options: dict[str, Any], said: str) -> None:
    with pytest.raises(ValueError, match="takes") as raised:
        make_core("every", 5, **options)
    assert str(raised.value) == f"core 'every': {said}"


def test_whole_numbers_stand_for_numbers_and_for_true_and_false() -> None:
    """Earlier versions took whole numbers alone and wrote them into checkpoints."""
    given = make_core("every", 5, size=8, scale=2, gate=1).given
    assert given["gate"] is True and type(given["scale"]) is float  # type: ignore[index]


def test_unknown_and_missing_options_are_told_with_those_there_are() -> None:
    for make in (make_core, lambda name, _, **given: read_core_options(name, given)):
        with pytest.raises(
            ValueError, match=r"^core 'every' has no option 'scal'; did you mean scale\? it has"
        ):
            make("every", 5, size=1, scal=3)
        with pytest.raises(
            ValueError, match=r"has no option 'input_size'; .*it has size, scale, gate, name,"
        ):
            make("every", 5, size=1, input_size=3)
        with pytest.raises(ValueError, match=r"^core 'bare' has no option 'size'; it has none at all$"):
            make("bare", 5, size=3)
        with pytest.raises(
            ValueError, match=r"^core 'every' needs the option size; it takes a whole number$"
        ):
            make("every", 5)


def test_a_core_without_declared_types_takes_what_it_is_given() -> None:
    read = read_core_options("free", {"size": "32", "rate": "0.5", "on": "true", "mode": "x"})
    assert read == {"size": 32, "rate": 0.5, "on": True, "mode": "x"}
    assert make_core("free", 5, **read).given == read
    assert make_core("free", 5, size="32").given == {"size": "32"}  # from Python as it is


def test_a_memorys_options_are_the_cores_where_it_hands_them_on() -> None:
    options = options_of(Handing)
    assert list(options) == ["hidden_size", "num_layers", "feature_map"] and options["num_layers"].types == (
        int,
    )
    assert options["feature_map"] == Option("feature_map", (), ("elu", "softmax"), "elu", "what keys pass.")
    assert read_core_options("handing", {"feature_map": "softmax"}) == {"feature_map": "softmax"}
    with pytest.raises(ValueError, match=r"feature_map is 'x'; it takes one of elu, softmax$"):
        read_core_options("handing", {"feature_map": "x"})
    with pytest.raises(ValueError, match=r"'sofmax'; did you mean softmax\? it takes one of elu, softmax$"):
        read_core_options("handing", {"feature_map": "sofmax"})
    with pytest.raises(
        ValueError, match=r"no option 'num_heads'; .*it has hidden_size, num_layers, feature_map$"
    ):
        read_core_options("handing", {"num_heads": "2"})


def test_options_at_their_default_are_left_out() -> None:
    given = {"mode": "delta", "size": 3, "scale": 1, "gate": 1, "order": 2, "name": "b", "limit": None}
    assert non_default_options("every", given) == {"size": 3, "gate": True, "order": 2, "name": "b"}
    later = {"size": "x", "new": 1, "name": "a"}
    assert non_default_options("every", later) == {"new": 1, "size": "x"}
    assert non_default_options("of_another_version", later) == later
    assert non_default_options("handing", {"feature_map": "elu", "num_layers": 2}) == {"num_layers": 2}


def test_values_that_mean_the_same_become_one() -> None:
    assert read_core_options("named", {"name": "Bc"}) == {"name": "bc"}
    assert make_core("named", 5, name="Bc").given["name"] == "bc"
    assert non_default_options("named", {"name": "a"}) == non_default_options("named", {"name": "A"}) == {}
    with pytest.raises(ValueError, match=r"^core 'named': name: a question$"):
        read_core_options("named", {"name": "?"})


def test_other_notes_of_annotations_mean_nothing() -> None:
    options = options_of(Noted)
    assert options["size"].types == (int,) and options["limit"].types == (int, type(None))
    assert read_core_options("noted", {"size": "4", "limit": "5"}) == {"size": 4, "limit": 5}
    with pytest.raises(ValueError, match="limit is 'x'; it takes a whole number or none"):
        read_core_options("noted", {"limit": "x"})


def test_only_the_same_value_is_the_default() -> None:
    assert non_default_options("noted", {"any_of": 1}) == {}
    assert non_default_options("noted", {"any_of": True}) == {"any_of": True}
    assert non_default_options("noted", {"sloppy": 2, "size": 3}) == {"sloppy": 2}
    assert non_default_options("noted", {"sloppy": "auto"}) == {}


@pytest.mark.parametrize(
    ("given", "written"),
    [
        ("rdn", "rdn"),
        (" gated-delta-net ,kda", "gated_delta_net,kda"),
        ("kda: short_conv=4 :head_norm=1,gtrxl", "kda:head_norm=true:short_conv=4,gtrxl"),
        ("kda:head_norm=False,gtrxl:window=8", "kda:head_norm=false,gtrxl:window=8"),
    ],
)
def test_a_hybrids_layers_are_written_in_one_way(given: str, written: str) -> None:
    assert normalize_layers(given) == normalize_layers(written) == written


def test_descriptions_come_from_the_docstrings() -> None:
    options = options_of(Every)
    assert options["size"].description == "width of the output, in units."
    assert options["scale"].description == "what it is scaled by."
    assert options["gate"].description == "" and "input_size" not in options


@pytest.mark.parametrize("name", core_names())
def test_every_option_of_every_core_is_typed_and_explained(name: str) -> None:
    for option in options_of(find_core(name)).values():
        assert option.description, f"{name}: {option.name} has no line under Args:"
        assert option.types or option.choices, f"{name}: {option.name} has no type"
        assert option.check(option.default) == option.default
