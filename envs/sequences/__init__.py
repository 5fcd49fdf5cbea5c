"""Small tasks of sequences: what they draw, and what is right. README.md here lists them."""

from .code import Code
from .dag import Reachability
from .listops import ListOps
from .retrieval import Retrieval
from .swap import Swap

GENERATORS = {"retrieval": Retrieval, "swap": Swap, "code": Code, "listops": ListOps, "dag": Reachability}
"""by the names that `deltabeast probe` knows"""
