"""The rules under which a game is played: scores under different rules must not be compared.

The first three are named after what they reproduce: what the code of the published recurrent fast-weight
agents does ("paper-code"), what their paper says ("paper-text"), and what Machado et al. (2018) recommend
("ale-standard"). README.md has the sources and the differences that remain.

Each of them can be played with less to see, to ask for memory; its name then goes on, for example
"paper-code+stack1+flicker0.5". `varied` makes such names, `find_protocol` reads them.
"""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Final, NamedTuple

import numpy as np

DEFAULT_PROTOCOL: Final = "paper-code"
UNLIMITED = 2**30  # frames; the emulator counts them in 32 bits


@dataclass(frozen=True)
class Protocol:
    frame_skip: int  # frames for which one action is held
    max_pool: bool  # the observation is the maximum of the last two of these frames
    sticky_probability: float  # chance, each frame, that the last action is held once more
    noop_frames: tuple[int, int]  # a game starts with a uniform number of no-ops from this range, in frames
    full_action_set: bool  # all eighteen actions, or the game's own
    life_ends_episode: bool  # the agent's episode ends with a life, and the game goes on
    press_fire: bool  # FIRE and action 2 are pressed for the agent whenever its episode begins
    repeat_first_frame: bool  # the frame stack begins as copies of the first frame, or with black ones
    max_frames: int  # length of a game
    max_frames_of: Mapping[str, int] = field(default_factory=dict)  # exceptions, by game
    frame_stack: int = 4  # screens in an observation
    flicker: float = 0.0  # chance that a screen is black (Hausknecht & Stone 2015)
    blink: float = 0.0  # chance that the ball is invisible on a screen (occlusion.py)

    def frame_limit(self, game: str) -> int:
        return self.max_frames_of.get(game, self.max_frames)


PROTOCOLS: dict[str, Protocol] = {
    # TorchBeast's wrappers as the published code stacks them, over gym's "NoFrameskip-v4" ids (gym <= 0.20).
    "paper-code": Protocol(
        frame_skip=4,  # MaxAndSkip(4), though the paper says no action is repeated
        max_pool=True,  # MaxAndSkip(4)
        sticky_probability=0.0,  # v4 ids, though the paper says actions are sticky
        noop_frames=(1, 30),  # NoopReset(30), over single frames
        full_action_set=False,  # gym's default
        life_ends_episode=True,  # EpisodicLife, in evaluation as well: a published score is that of one life
        press_fire=True,  # FireReset, outside EpisodicLife: after every life, not only every game
        repeat_first_frame=True,  # FrameStack
        max_frames=400_000,  # gym's TimeLimit of the NoFrameskip ids
        max_frames_of={"space_invaders": 300_000},  # 100,000 times its frame skip of 3, in gym's registration
    ),
    # What the paper says, and TorchBeast's wrappers where it is silent.
    "paper-text": Protocol(
        frame_skip=1,  # "no action repeat"
        max_pool=False,  # nothing to pool over
        sticky_probability=0.25,  # "default sticky action": the only source of chance
        noop_frames=(0, 0),  # so no random starts
        full_action_set=False,  # "game-specific action spaces"
        life_ends_episode=False,  # "episodes": whole games
        press_fire=False,  # not mentioned
        repeat_first_frame=True,  # FrameStack, not mentioned
        max_frames=UNLIMITED,  # "no time limit"
    ),
    # Machado et al. (2018), "Revisiting the Arcade Learning Environment", section 5 and table 4.
    "ale-standard": Protocol(
        frame_skip=4,
        max_pool=True,  # colour averaging or pooling, as every agent of the field does
        sticky_probability=0.25,
        noop_frames=(0, 0),  # sticky actions take the place of random starts
        full_action_set=True,
        life_ends_episode=False,  # the end of the game only
        press_fire=False,  # the agent has to learn it
        repeat_first_frame=False,  # black frames, as in Dopamine
        max_frames=108_000,  # 30 minutes
    ),
}


class _View(NamedTuple):
    """What an agent sees of a game."""

    frame_stack: int = Protocol.frame_stack
    flicker: float = Protocol.flicker
    blink: float = Protocol.blink


_SHARE = r"(\d+(?:\.\d+)?)"
_VARIED = re.compile(rf"([^+]+)(?:\+stack(\d+))?(?:\+flicker{_SHARE})?(?:\+blink{_SHARE})?")


def find_protocol(name: str) -> Protocol:
    """Return the protocol of a name. Raises ValueError for an unknown or invalid one."""
    base, view = _read(name)
    if base not in PROTOCOLS:
        raise ValueError(f"unknown protocol {name!r}: choose {', '.join(PROTOCOLS)}")
    return replace(PROTOCOLS[base], **view._asdict())


def varied(
    name: str, frame_stack: int | None = None, flicker: float | None = None, blink: float | None = None
) -> str:
    """Name a protocol with another frame stack, flicker or blinking; None leaves them as `name` has them.

    Raises ValueError for an invalid one.
    """
    base, view = _read(name)
    view = _View(
        view.frame_stack if frame_stack is None else frame_stack,
        view.flicker if flicker is None else flicker,
        view.blink if blink is None else blink,
    )
    _check(view)
    return "".join([
        base,
        f"+stack{view.frame_stack}" if view.frame_stack != Protocol.frame_stack else "",
        *(f"+{option}{np.format_float_positional(share)}" for option, share in _shares(view) if share),
    ])  # fmt: skip


def _read(name: str) -> tuple[str, _View]:
    parts = _VARIED.fullmatch(name)
    if parts is None:
        raise ValueError(f"unknown protocol {name!r}: choose {', '.join(PROTOCOLS)}")
    base, stack, flicker, blink = parts.groups()
    view = _View(int(stack or Protocol.frame_stack), float(flicker or 0), float(blink or 0))
    _check(view)
    return base, view


def _shares(view: _View) -> Sequence[tuple[str, float]]:
    return ("flicker", view.flicker), ("blink", view.blink)


def _check(view: _View) -> None:
    if not 1 <= view.frame_stack <= Protocol.frame_stack:
        raise ValueError(f"frame_stack is {view.frame_stack}; give 1 to {Protocol.frame_stack} screens")
    for option, share in _shares(view):
        if not 0 <= share < 1:
            raise ValueError(f"{option} is {share}; give a probability from 0 to less than 1")
