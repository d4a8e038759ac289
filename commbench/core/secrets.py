"""Masks credentials in everything that is recorded; the names of variables and keys stay."""

from __future__ import annotations

import re
from typing import Any

SECRET_WORDS = re.compile(
    "TOKEN|KEY|SECRET|PASSWORD|PASSWD|PASSPHRASE|CREDENTIAL|AUTH|COOKIE|JWT", re.IGNORECASE
)
MASK = "***"
BEFORE_AT = re.compile(r"(?<![^@/,;])[^@/,;]+@")
NAMED_SECRETS = re.compile(
    r"((?:token|secret|passw(?:or)?d|passphrase|api_?key|credentials?|jwt)\"?\s*[=:]\s*)[^\s,;&]+",
    re.IGNORECASE,
)
JSON_WEB_TOKEN = re.compile(r"\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?")
OVERRIDE = re.compile(r"([+~]*)([^=\s]+)=(.*)", re.DOTALL)
# in a mapping of Hydra's grammar: NAME: 'text', NAME: "text" or NAME: text up to a comma or a
# bracket
MAP_ENTRY = re.compile(
    r"""(?<![\w.-])([\w.-]+)(\s*:\s*)('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,{}\[\]]+)"""
)


def is_secret(name: str) -> bool:
    """Whether a variable or key of that name may hold a credential."""
    return SECRET_WORDS.search(name) is not None


def mask(value: str) -> str:
    """The text with what looks like credentials masked."""
    words = value.split(" ")
    for index, word in enumerate(words):
        scheme, separator, rest = word.partition("://")
        # up to the last @: a password in a URL may contain a slash, a comma or an @
        if separator and "@" in rest:
            words[index] = f"{scheme}://{MASK}@{rest.rpartition('@')[2]}"
        else:
            words[index] = BEFORE_AT.sub(
                lambda match: f"{MASK}@" if ":" in match[0] else match[0], word
            )
    return JSON_WEB_TOKEN.sub(MASK, NAMED_SECRETS.sub(rf"\g<1>{MASK}", " ".join(words)))


def recorded(name: str, value: Any) -> Any:
    """A value of the configuration, masked at every depth, as it may be recorded; null and booleans
    stay."""
    if isinstance(value, dict):
        return {key: recorded(str(key), entry) for key, entry in value.items()}
    if isinstance(value, list):
        return [recorded(name, entry) for entry in value]
    if is_secret(name) and value is not None and not isinstance(value, bool):
        return MASK
    return mask(value) if isinstance(value, str) else value


def recorded_override(text: str) -> str:
    """An override as it may be recorded: KEY='***' if KEY, or a name in its mapping, names a
    credential."""
    match = OVERRIDE.fullmatch(text)
    if match is None:
        return mask(text)
    signs, key, value = match.groups()
    if is_secret(key):
        return f"{signs}{key}='{MASK}'"
    if value.startswith(("{", "[")):
        return f"{signs}{key}={MAP_ENTRY.sub(_mapped, value)}"
    return f"{signs}{key}={_mask_quoted(value)}"


def _mapped(match: re.Match[str]) -> str:
    name, colon, value = match.groups()
    return f"{name}{colon}'{MASK}'" if is_secret(name) else f"{name}{colon}{_mask_quoted(value)}"


def _mask_quoted(value: str) -> str:
    """A value in Hydra's grammar, masked within its quotes."""
    quote = value[0] if len(value) > 1 and value[0] in "'\"" and value[-1] == value[0] else ""
    return f"{quote}{mask(value[1:-1])}{quote}" if quote else mask(value)
