"""Tables of values that one test goes through."""

from __future__ import annotations

import inspect
import traceback
from collections.abc import Callable, Iterable, Sequence
from typing import Any

Check = Callable[..., None]


def for_each(names: str | Sequence[str], rows: Iterable[Any]) -> Callable[[Check], Check]:
    """Like pytest.mark.parametrize, but makes one test, which names every row that fails.

    The rows share their fixtures.
    """
    table = tuple(rows)
    columns = (names,) if isinstance(names, str) else tuple(names)
    assert table, "a loop over nothing proves nothing"

    def as_loop(check: Check) -> Check:
        def test(**fixtures: Any) -> None:
            failures = []
            for row in table:
                values = (row,) if isinstance(names, str) else row
                arguments = dict(zip(columns, values, strict=True))
                try:
                    check(**arguments, **fixtures)
                except Exception as error:
                    failures.append((arguments, error))
            if failures:
                texts = [_text(arguments, error) for arguments, error in failures]
                message = "\n".join([f"{len(failures)} of {len(table)} fail:", *texts])
                raise AssertionError(message) from failures[0][1]

        parameters = inspect.signature(check).parameters.values()
        fixtures = [parameter for parameter in parameters if parameter.name not in columns]
        for attribute in ("__name__", "__qualname__", "__doc__", "__module__"):
            setattr(test, attribute, getattr(check, attribute))
        test.__signature__ = inspect.Signature(fixtures)  # type: ignore[attr-defined]
        test.pytestmark = getattr(check, "pytestmark", [])  # type: ignore[attr-defined]
        return test

    return as_loop


def _text(arguments: dict[str, Any], error: Exception) -> str:
    place = traceback.extract_tb(error.__traceback__)[-1]
    values = ", ".join(f"{name}={value!a}" for name, value in arguments.items())
    kind = "" if isinstance(error, AssertionError) else f"{type(error).__name__}: "
    return f"{values}, line {place.lineno}: {kind}{error}"
