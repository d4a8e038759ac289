"""Overrides as texts: what a user types, or gives from Python, in Hydra's grammar.

Hydra reads 1.10 as 1.1 and has no keys that are not in a file. commbench keeps texts as they were
typed, and takes any environment variable.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from commbench.core.errors import ConfigError
from commbench.core.secrets import MAP_ENTRY, MASK

from .keys import is_text

# quoted texts, and the words between commas and brackets, in a value and in a map of values
WORDS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,\[\]'"]+""")
MAPPED_WORDS = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,:{}\[\]'"]+""")
SWITCHES = "search.switches"  # of hosts, whose names may have dots
# what Hydra reads as a number or a truth value
NOT_A_TEXT = re.compile(
    r"[+-]?(?=[._]*\d)[\d_]*(?:\.[\d_]*)?(?:e[+-]?[\d_]+)?|[+-]?(?:inf|nan)|true|false",
    re.IGNORECASE,
)


def normalized(override: str) -> str:
    """An override of the command line in Hydra's grammar."""
    key, _, value = override.partition("=")
    name = key.lstrip("+")
    if name == "env" or name.startswith("env."):
        return _normalized_env(key, value)
    if is_text(name):
        return f"{key}={WORDS.sub(_text_word, value)}"
    if name.startswith(SWITCHES):  # hosts are new keys, their switches texts
        return f"++{name}={MAPPED_WORDS.sub(_text_word, value)}"
    if key == "expect" and set(value) & set("<>") and not set(value) & set("'\""):
        texts = [f"'{text.strip()}'" for text in value.strip("[]").split(",")]
        return f"expect=[{','.join(texts)}]" if value.startswith("[") else f"expect='{value}'"
    return override


def _normalized_env(key: str, value: str) -> str:
    """Of env={A: text} or env.A=text: new keys, with ++, and values that stay texts."""
    name = key.lstrip("+")
    is_map = value.startswith("{")
    if name == "env":
        value = MAP_ENTRY.sub(_exported_entry, value) if is_map else value
    elif value.strip("'") == MASK:
        return f"++{name}={_exported_secret(name.removeprefix('env.'))}"
    elif name == key and _is_one_text(value):
        return f"++{key}='{value}'"  # 1e3 stays 1e3
    is_new = name == key and (is_map or name != "env")
    words = MAPPED_WORDS if is_map else WORDS
    return f"{'++' if is_new else ''}{key}={words.sub(_text_word, value)}"


def _is_one_text(value: str) -> bool:
    """Whether a value has nothing of Hydra's grammar: lists, quotes, choices of a sweep."""
    return value not in ("", "null") and value[0] not in '[{"' and not set(value) & set("',(")


def _exported_secret(name: str) -> str:
    """A value that was recorded as ***, quoted. Raises ConfigError where it is not exported."""
    if name not in os.environ:
        raise ConfigError(
            f"env.{name} is a credential and was not recorded; export {name}=... and try again"
        )
    return quoted(os.environ[name])


def _exported_entry(match: re.Match[str]) -> str:
    name, colon, value = match.groups()
    is_masked = value.strip("'") == MASK
    return f"{name}{colon}{_exported_secret(name)}" if is_masked else match[0]


def _text_word(match: re.Match[str]) -> str:
    """A word of a value as text: 1.10 is neither 1.1 nor a number, and may have parameters with
    equals signs."""
    word = match[0].strip()
    quoted = word[:1] in ("'", '"')
    needs_quotes = NOT_A_TEXT.fullmatch(word) or ("=" in word and not quoted)
    return f"'{word}'" if needs_quotes else match[0]


def quoted(text: object) -> str:
    """A string literal of Hydra's grammar, where a backslash is literal except right before a
    quote."""
    escaped = re.sub(r"(?<!\\)(\\*)'", r"\1\1\\'", str(text))
    return f"'{escaped}{escaped[len(escaped.rstrip(chr(92))) :]}'"


def override_texts(*given: str | Mapping[str, Any]) -> list[str]:
    """Overrides given from Python in the form of the command line: a mapping becomes one for each
    key that it sets.

    Raises ConfigError for a key that is not a text and for a value of an unsupported type.
    """
    texts = list[str]()
    for item in given:
        if isinstance(item, str):
            texts.append(item)
            continue
        if not isinstance(item, Mapping):
            raise ConfigError(
                f"{item!r} is not an override; give KEY=VALUE texts, a dict, or keywords:"
                " backend='gloo'"
            )
        for key, value in item.items():
            if not isinstance(key, str):
                raise ConfigError(f"{key!r} is not a key; keys are texts, such as 'timing.visits'")
            if isinstance(value, Mapping) and key == SWITCHES:
                entries = (f"{host}: {switch}" for host, switch in value.items())
                texts.append(f"{key}={{{', '.join(entries)}}}")
            elif isinstance(value, Mapping) and value:
                texts += override_texts({f"{key}.{name}": entry for name, entry in value.items()})
            else:
                texts.append(f"{key}={_value_text(key, value)}")
    return texts


def _value_text(key: str, value: Any) -> str:
    """A value in Hydra's grammar. Texts in brackets are lists and maps, as on the command line."""
    if hasattr(value, "tolist"):  # of numpy, pandas or torch
        value = value.tolist()
    if isinstance(value, bool | None):
        return json.dumps(value)
    if isinstance(value, list | tuple | range):
        return f"[{','.join(_value_text(key, entry) for entry in value)}]"
    if isinstance(value, Mapping):  # an empty one; others are keys of their own
        return "{}"
    if isinstance(value, str | Path):
        text = str(value)
        plain = re.fullmatch(r"[\w./:*+%@-]+|[\[{].*[\]}]", text, re.ASCII)
        return text if plain and text.lower() != "null" else quoted(text)
    is_number = isinstance(value, int | float)
    if is_number or hasattr(value, "__index__") or hasattr(value, "__float__"):
        return str(value)
    raise ConfigError(
        f"{key}={value!r} is a {type(value).__name__}; give a text, number, boolean, None, list or"
        " dict"
    )


def unreadable(override: str) -> str:
    """Why an override can't be read, in a line."""
    key, sign, value = override.lstrip("+").partition("=")
    if not sign:
        return f"{override!r} is neither KEY=VALUE nor a command of commbench --help"
    if not key:
        return f"{override!r} has no key; write KEY=VALUE"
    return (
        f"can't read {key}={value}; text with special characters needs quotes within quotes:"
        f" \"{key}='TEXT'\""
    )
