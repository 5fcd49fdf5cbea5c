"""Text of others, made safe to show: one function for each place where it is shown.

Names in a run, a file, an environment or somebody's core may hold escape sequences that rewrite a terminal,
newlines that forge a line of ours, HTML, Markdown, or mathematics that matplotlib cannot read; addresses may
hold passwords. Whoever writes to a terminal, a page or a figure passes all text through here, our own
included, so that no message has to remember what in it is whose.
"""

from __future__ import annotations

import re
from html import escape

MOST = 10_000
"""Characters of a text that are shown; of a longer one its beginning and its end are."""
_MOST_IN_FIGURE = 300

_PASSWORD = re.compile(r"(?<=://)[^\s/?#'\"]*@")


def terminal(text: str) -> str:
    """Return text as one line that moves no cursor and sets no colour."""
    return _visible(_shortened(without_passwords(text), MOST))


def html(text: str) -> str:
    """Return text as HTML that shows it, in an element or in an attribute."""
    return escape(terminal(text))


def markdown(text: str) -> str:
    """Return text as Markdown that shows it, in a paragraph, a point or a cell: no tag, no link, no emphasis.

    Backticks stay what they are, as our own texts have commands in them; no tag or link can come of them.
    """
    text = terminal(text).replace("\\", "\\\\")
    text = re.sub(r"<(?=[A-Za-z/!?])", "&lt;", text)
    text = re.sub(r"\](?=[(\[:])", r"]\\", text)
    text = re.sub(r"(?<![A-Za-z0-9])_|_(?![A-Za-z0-9])|[*|]", r"\\\g<0>", text)
    return re.sub(r"^(?=[#>=~]|[-+] )|(?<=^\d)(?=[.)] )", r"\\", text)


def figure(text: str) -> str:
    """Return text as a label of a figure, whose line breaks are our own. `plots` reads no mathematics."""
    return "\n".join(map(_visible, _shortened(without_passwords(text), _MOST_IN_FIGURE).split("\n")))


def without_passwords(text: str) -> str:
    """Leave out who logs in, and how, from addresses: https://user:password@host is https://...@host."""
    return _PASSWORD.sub("...@", text)


def beginning(text: str, most: int = 200) -> str:
    """Return the first characters of a text that is longer than `most`, or all of it."""
    return text if len(text) <= most else f"{text[:most]}..."


def _visible(text: str) -> str:
    """Spell out control characters, line breaks, marks that change the direction, and invalid bytes."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def _shortened(text: str, most: int) -> str:
    """Cut the middle out of a text that is too long: what to do about an error stands at its end."""
    half = (most - 5) // 2
    return text if len(text) <= most else f"{text[:half]} ... {text[-half:]}"
