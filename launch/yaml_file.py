"""Reading YAML of somebody else's: plain values alone, within limits, each written out where it stands."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from ..agents.reading import DEEPEST, bounded, read_bytes
from .errors import UsageError

MOST_BYTES = 64 << 10
"""Options are short, and YAML takes a second to read so much."""


def read_yaml(path: Path) -> Any:
    """Read a YAML file. Raises OSError, ValueError for what is none or goes beyond the limits, and UsageError
    without the package that reads it."""
    try:
        import yaml
    except ImportError:
        raise UsageError(f"{path} is YAML, which needs: pip install pyyaml; or give JSON") from None

    class Loader(yaml.SafeLoader):
        """Refuses what stands for a part of the file, which could be written many times over, and depth."""

        depth = 0

        def compose_node(self, parent: Any, index: Any) -> Any:
            if self.check_event(yaml.AliasEvent):
                raise ValueError("it has an alias (*name); write out what it stands for")
            if self.depth > DEEPEST:
                raise ValueError(f"values stand more than {DEEPEST} deep in one another")
            self.depth += 1
            node = super().compose_node(parent, index)
            self.depth -= 1
            return node

    try:
        return bounded(yaml.load(read_bytes(path, MOST_BYTES), Loader))
    except (yaml.YAMLError, ArithmeticError) as error:
        raise ValueError(str(error)) from error
