"""What C takes the place of is what it was compared with."""

from __future__ import annotations

import json

from renew_digests import digests

from deltabeast.agents.cpu.verify import DIGESTS


def test_what_was_edited_was_compared_again() -> None:
    compared, now = json.loads(DIGESTS.read_text()), digests()
    assert {name for name in compared.keys() | now.keys() if compared.get(name) != now.get(name)} == set(), (
        "edited since C was compared with it: run `make digests`"
    )
