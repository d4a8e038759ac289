"""Element types by torch's names: their size, their machine words, and small integers written in them."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from .errors import ConfigError


@dataclass(frozen=True)
class DType:
    """`word` is the numpy type that stores one element; bfloat16 has none and is stored as uint16."""

    name: str
    itemsize: int
    word: str
    floating: bool

    def encode(self, values: NDArray[Any]) -> NDArray[Any]:
        """Numbers as elements of this type; exact for the integers of a program.Pattern."""
        if self.name == "bfloat16":
            return (values.astype(np.float32).view(np.uint32) >> 16).astype(np.uint16)
        return values.astype(self.word)

    def decode(self, words: NDArray[Any]) -> NDArray[Any]:
        """Elements as float64 (floating types) or as themselves (integers)."""
        if self.name == "bfloat16":
            return (words.astype(np.uint32) << 16).view(np.float32).astype(np.float64)
        return words.astype(np.float64) if self.floating else words


DTYPES: dict[str, DType] = {
    name: DType(name, size, word, floating)
    for name, size, word, floating in (
        ("float64", 8, "float64", True),
        ("float32", 4, "float32", True),
        ("float16", 2, "float16", True),
        ("bfloat16", 2, "uint16", True),
        ("int64", 8, "int64", False),
        ("int32", 4, "int32", False),
        ("int8", 1, "int8", False),
        ("uint8", 1, "uint8", False),
    )
}


def dtype(name: str) -> DType:
    """The element type of that name; raises ConfigError with the names that exist."""
    if name not in DTYPES:
        raise ConfigError(f"dtype={name} is unknown; allowed: {', '.join(DTYPES)}")
    return DTYPES[name]
