"""`deltabeast watch RUN --record FILE`: a game as the same page, in one file that needs no server."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from pathlib import Path
from typing import Any

from rich.console import Console

from ...agents import files
from ..config import WatchConfig
from ..errors import UsageError, writing
from ..evaluation.progress import progress
from ..output import say
from ..units import count
from .origin import how_made
from .page import page_file
from .session import Session

_OPENING = '<script type="application/json" id="recording">'
_END = "</body>\n</html>\n"
SHORT = 300
"""Steps until which another game follows one that has ended."""


def need_new_file(path: Path) -> None:
    """Raise UsageError, naming the remedy, if no file of that name can be made."""
    if path.is_dir():
        raise UsageError(f"--record {path} is a folder; name a file in it, such as game.html")
    if os.path.lexists(path):
        raise UsageError(f"--record {path} is there already; remove it, or give another name")
    folder = next(each for each in path.absolute().parents if os.path.lexists(each))
    if not folder.is_dir() or not os.access(folder, os.W_OK | os.X_OK):
        raise UsageError(f"--record {path}: nothing can be written to {folder}; name another folder")


def record(session: Session, config: WatchConfig, path: Path, console: Console) -> None:
    """Play a game of the first agent, or several short ones, and write the page. Raises RunError."""
    steps: list[list[dict[str, Any]]] = []
    games = 0
    with progress(console, "watch") as tell:
        while len(steps) < config.steps and (len(steps) < SHORT or session.games == games):
            games = session.games
            steps.append(session.step())
            tell(session.games, None, len(steps))
    goes_on = session.games == games
    about = {"state": session.state() | {"viewers": 1}, "made": how_made(config, session), "goes_on": goes_on}
    html = to_html({**about, "anew": True, "steps": steps})
    with writing(path.parent):
        path.parent.mkdir(parents=True, exist_ok=True)
        files.create(path, files.encoded(html))
    more = "; the game goes on: more with --steps" if goes_on else ""
    say(console, f"saved {count(len(steps), 'step')} as {path}{more}")


def to_html(message: dict[str, Any]) -> str:
    """Return the page with a message embedded, of what a viewer is sent."""
    data = json.dumps(message, separators=(",", ":"), allow_nan=False).replace("<", "\\u003c")
    page, style, script = (page_file(name) for name in ("page.html", "page.css", "page.js"))
    page = page.replace('<script src="/page.js" defer></script>\n', "")
    policy = (
        f"default-src 'none'; style-src {_digest(style)}; script-src {_digest(script)}; img-src data:; "
        "base-uri 'none'; form-action 'none'"
    )
    meta = f'<meta http-equiv="Content-Security-Policy" content="{policy}">'
    page = page.replace('<meta charset="utf-8">', f'<meta charset="utf-8">\n{meta}')
    page = page.replace('<link rel="stylesheet" href="/page.css">', f"<style>{style}</style>")
    embedded = f"{_OPENING}{data}</script>\n<script>{script}</script>\n</body>"
    head, body = page.rsplit("</body>", 1)
    return head + embedded + body


def recorded_message(html: bytes) -> Any:
    """Return the message embedded in a whole page, of any version. Raises ValueError if there is none."""
    _, _, rest = html.decode().partition(_OPENING)
    if not rest.endswith(_END):
        raise ValueError("the page is no recording, or not whole")
    return json.loads(rest.partition("</script>")[0])


def _digest(content: str) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content.encode()).digest()).decode()}'"
