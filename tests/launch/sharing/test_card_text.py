"""A card whose agent has names of somebody's making."""

from __future__ import annotations

import re
from dataclasses import replace

from deltabeast.agents import Agent, AgentSpec
from deltabeast.launch.sharing.card import Exported, links_game, write_card

EVIL = "x</td><script>alert(1)</script>\n```\n[y](javascript:z) |\x1b[2J"


def test_names_make_neither_tags_nor_links_nor_lines() -> None:
    agent = Agent(AgentSpec((4,), 2, "lstm", "mlp", {"hidden_size": 8}))
    agent.spec = replace(agent.spec, core=f"mine:{EVIL}", env_id=EVIL, core_options={"path": EVIL})
    card = write_card(
        Exported(agent, 1, {"env": EVIL, "preset": EVIL}, {"commit": EVIL}, [], [], False, None)
    )
    _, head, body = card.split("---\n", 2)
    prose, blocks = re.subn(r"^```.*?^```$", "", body, flags=re.MULTILINE | re.DOTALL)
    assert blocks == 2 and not re.search("^```", prose, re.MULTILINE), "our own two"
    assert "<script" not in prose and "](javascript" not in prose and "\x1b" not in card
    assert head.count("\n") == 2, "two keys of YAML, whatever their values hold"


def test_code_of_others_that_an_agent_needs_is_named() -> None:
    def card(core: str, env: str) -> str:
        agent = Agent(AgentSpec((4,), 2, "lstm", "mlp", {"hidden_size": 8}))
        agent.spec = replace(agent.spec, core=core, env_id=env)
        return write_card(Exported(agent, 1, {}, {}, [], [], False, None))

    own = card("lstm", "my_envs:Box")
    assert "`my_envs:Box` must be importable, as the file my_envs.py is" in own and "The core is" not in own
    assert "`my_cores:Leaky` must be importable, as the file my_cores.py" in card(
        "my_cores:Leaky", "CartPole-v1"
    )
    assert "importable" not in card("lstm", "CartPole-v1") + card("lstm", "popgym:popgym-Box-v0")


def test_a_game_is_said_to_show_what_the_memory_does_where_it_does() -> None:
    agent = Agent(AgentSpec((4,), 2, "lstm", "mlp", {"hidden_size": 8}))
    agent.spec = replace(agent.spec, env_id="CartPole-v1")
    plain = Exported(agent, 1, {}, {}, [], [], half=False, note=None, has_game=True)
    memory = "step by step with what the memory reads and writes: a page"
    assert memory not in write_card(plain) and "step by step: a page" in write_card(plain)
    assert memory in write_card(replace(plain, reads_writes=True))


def test_which_cards_link_a_game() -> None:
    agent = Agent(AgentSpec((4,), 2, "lstm", "mlp", {"hidden_size": 8}))
    agent.spec = replace(agent.spec, env_id="CartPole-v1")
    exported = Exported(agent, 1, {}, {}, [], [], half=False, note="See game.html, or [mine](my-game.html).")
    assert not links_game(write_card(exported)) and not links_game("")
    assert links_game(write_card(replace(exported, has_game=True)))
    assert links_game("[my own words](./game.html)") and links_game('<a href="game.html">')
