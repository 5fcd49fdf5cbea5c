"""What C takes the place of is what it was compared with."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path

import pytest
from renew_digests import of_agents, of_rules

from deltabeast.agents.cpu import verify
from deltabeast.kernels import dispatch


@pytest.mark.parametrize(("file", "now"), [(verify.DIGESTS, of_agents), (dispatch.DIGESTS, of_rules)])
def test_what_was_edited_was_compared_again(file: Path, now: Callable[[], dict[str, str]]) -> None:
    recorded, found = json.loads(file.read_text()), now()
    assert {
        name for name in recorded.keys() | found.keys() if recorded.get(name) != found.get(name)
    } == set(), "edited since C was compared with it: run `make digests`"
