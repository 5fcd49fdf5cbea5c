"""The processes that a test has started, found in /proc."""

from __future__ import annotations

import ipaddress
import os
from contextlib import suppress
from pathlib import Path


def family(pid: int) -> set[int]:
    """All descendants of a process but Ray's own agents, which notice a sudden end a minute late."""
    return {child for child in descendants(pid) if "Agent" not in command(child)}


def descendants(pid: int) -> set[int]:
    found: set[int] = set()
    for task in Path(f"/proc/{pid}/task").glob("*/children"):
        with suppress(OSError):  # it has ended meanwhile
            for child in map(int, task.read_text().split()):
                found |= {child, *descendants(child)}
    return found


def command(pid: int) -> str:
    """What it was started with; nothing if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_text()
    except OSError:
        return ""


def alive(pids: set[int]) -> set[int]:
    states = {pid: Path(f"/proc/{pid}/stat") for pid in pids}
    return {pid for pid, path in states.items() if path.exists() and " Z " not in path.read_text()}


def listening(pids: set[int]) -> set[str]:
    """The addresses at which they accept TCP connections: `0.0.0.0` and `::` are all of the machine's."""
    addresses = {}
    for table in ("tcp", "tcp6"):
        for line in Path(f"/proc/net/{table}").read_text().splitlines()[1:]:
            fields = line.split()
            if fields[3] == "0A":  # it listens
                addresses[f"socket:[{fields[9]}]"] = _address(fields[1].partition(":")[0])
    sockets: set[str] = set()
    for descriptor in (path for pid in pids for path in Path(f"/proc/{pid}/fd").glob("*")):
        with suppress(OSError):  # it was closed meanwhile
            sockets.add(os.readlink(descriptor))
    return {addresses[socket] for socket in sockets & addresses.keys()}


def _address(digits: str) -> str:
    """As the kernel writes it: words of four bytes, each in the order of this machine."""
    words = [bytes.fromhex(digits[i : i + 8])[::-1] for i in range(0, len(digits), 8)]
    address = ipaddress.ip_address(b"".join(words))
    return str(getattr(address, "ipv4_mapped", None) or address)
