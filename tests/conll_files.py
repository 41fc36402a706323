"""Files in CoNLL columns, as the tests read them."""

from pathlib import Path
from typing import Any

from bertkit.readers import Examples
from bertkit.readers.conll import parse_conll
from bertkit.readers.lines import read_text


def read_conll(path: Path, **options: Any) -> Examples:
    """The sentences of a file, whatever its name."""
    return parse_conll(read_text(path), str(path), **options)
