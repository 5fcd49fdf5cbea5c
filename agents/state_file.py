"""Safe loading of the state of training, `state.pt`: plain values and uncompressed tensors."""

from __future__ import annotations

import io
import pickletools
import re
import zipfile
from typing import Any

import torch

_NAMED = re.compile(
    r"torch \w+Storage|torch\._utils _rebuild_(tensor_v2|parameter)|torch Size|collections OrderedDict"
    r"|_codecs encode"
)
"""Globals that a pickle of plain values and tensors imports, as `module name`."""


def load_state(content: bytes) -> dict[str, Any]:
    """Load what `torch.save` wrote. Raises ValueError for what would need more memory than the file is long.

    `weights_only` keeps code from being executed, but would unpack what is compressed, and make a tensor or a
    bytearray of whatever size a few bytes ask for.
    """
    with zipfile.ZipFile(io.BytesIO(content)) as archive:
        check_entries(archive, len(content))
        for pickle in [entry for entry in archive.infolist() if entry.filename.endswith(".pkl")]:
            _check(archive.read(pickle))
    state: dict[str, Any] = torch.load(io.BytesIO(content), map_location="cpu", weights_only=True)
    return state


def check_entries(archive: zipfile.ZipFile, size: int) -> None:
    """Raise ValueError if the uncompressed entries of a zip file exceed its `size` in bytes."""
    if sum(entry.file_size for entry in archive.infolist()) > size:
        raise ValueError("its uncompressed entries exceed its size")


def _check(pickle: bytes) -> None:
    for opcode, named, _ in pickletools.genops(pickle):
        if opcode.name == "GLOBAL" and not _NAMED.fullmatch(str(named)):
            raise ValueError(f"it names {named}, which no state of training has")
