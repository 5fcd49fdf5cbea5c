"""Games, the protocols they are played under, and vector environments. README.md has the contract."""

from .builtin import register_environments
from .games import (
    PAPER_GAMES,
    GameInfo,
    action_meanings,
    canonical_game,
    game_info,
    game_names,
    human_normalized,
)
from .limits import available_cores, available_threads, core_limits, thread_limits
from .protocols import DEFAULT_PROTOCOL, PROTOCOLS, Protocol, find_protocol, varied
from .rescue import EnvironmentFailed
from .tasks import ABILITIES, Task, find_task, task_normalized
from .vector_env import make_vector_env

register_environments()

__all__ = [
    "ABILITIES",
    "DEFAULT_PROTOCOL",
    "PAPER_GAMES",
    "PROTOCOLS",
    "EnvironmentFailed",
    "GameInfo",
    "Protocol",
    "Task",
    "action_meanings",
    "available_cores",
    "available_threads",
    "canonical_game",
    "core_limits",
    "find_protocol",
    "find_task",
    "game_info",
    "game_names",
    "human_normalized",
    "make_vector_env",
    "task_normalized",
    "thread_limits",
    "varied",
]
