"""Masks credentials in everything that is recorded; the names of variables and keys stay."""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

SECRET_WORDS = re.compile(
    # not TOKENIZERS_PARALLELISM and GIT_AUTHOR_NAME; not PASSIVE, BYPASS, COMPASS and timing.pass_s
    r"TOKEN(?!IZ)|KEY|SECRET|CREDENTIAL|AUTH(?!OR(?!I))|COOKIE|JWT|SIGNATURE|^SIG$"
    r"|PASSWORD|PASSWD|PASSPHRASE|(?<!BY)(?<!COM)PASS(?![A-Z]|_S\b)|PWD|(?<![A-Z])PSK(?![A-Z])",
    re.IGNORECASE,
)
FOLDERS = ("PWD", "OLDPWD")  # variables of a shell; pwd= in a text is a password
MASK = "***"
BEFORE_AT = re.compile(r"(?<![^@/,;])[^@/,;]+@")
# NAME=, NAME: and --NAME in a text; the value follows
NAME = re.compile(
    r"(?<![\w.-])(?:([\w.-]+)[\"']?\s*[=:]\s*(?=[^\s=:])|(--?[A-Za-z][\w-]*)\s+(?=[^\s=:-]))"
)
VALUE = re.compile(r"""'[^']*'|"[^"]*"|[^\s,;&]+""")
SECRET_TEXTS = re.compile(
    r"\beyJ[\w-]+\.[\w-]+(?:\.[\w-]*)?"  # a JSON web token
    r"|(?<![A-Za-z0-9])(?:gh[opsur]_|hf_|npm_|AKIA|ASIA)[A-Za-z0-9]{16,}|\bsk-[A-Za-z0-9]{32,}"
    r"|\b(?:github_pat_|glpat-|pypi-|xox[abeprs]-|sk-proj-|sk-ant-|AIza)[\w-]{16,}"
    # PEM; of a part without its end, all that follows
    r"|-----BEGIN [A-Z ]*PRIVATE KEY[\s\S]*?(?:-----END [A-Z ]*PRIVATE KEY[A-Z ]*-----|\Z)"
)
SCHEMES = re.compile(r"\b(Bearer\s+)[^\s,;'\"]+|\b(Basic\s+)[\w+/]{8,}=*", re.IGNORECASE)
OPTION = re.compile(r"[\w.-]+")
OVERRIDE = re.compile(r"([+~]*)([^=\s]+)=(.*)", re.DOTALL)
# in a mapping of Hydra's grammar: NAME: 'text', NAME: "text" or NAME: text up to a comma or a
# bracket
MAP_ENTRY = re.compile(
    r"""(?<![\w.-])([\w.-]+)(\s*:\s*)('(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,{}\[\]]+)"""
)
LIST_ENTRY = re.compile(r"""'(?:[^'\\]|\\.)*'|"(?:[^"\\]|\\.)*"|[^,\[\]{}'"]+""")


def is_secret(name: str) -> bool:
    """Whether a variable or key of that name may hold a credential."""
    word = name.rpartition(".")[2]
    return word not in FOLDERS and SECRET_WORDS.search(name) is not None


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
    text = SECRET_TEXTS.sub(MASK, " ".join(words))
    return _mask_named(SCHEMES.sub(lambda match: f"{match[1] or match[2]}{MASK}", text))


def _mask_named(text: str) -> str:
    """The text with *** for each value whose name, before it, is that of a credential."""
    parts = []
    end = 0
    for match in NAME.finditer(text):
        name = match[1] or match[2]
        start = match.end()
        is_count = name.lower().endswith("tokens") and text[start].isdigit()  # of a model
        if match.start() < end or is_count or not is_secret(name):
            continue
        value = VALUE.match(text, start)
        if value is not None:
            parts += [text[end:start], MASK]
            end = value.end()
    return "".join([*parts, text[end:]])


def _mask_words(words: Sequence[str]) -> list[str]:
    """The words of a command line, where a value may follow its name as a word of its own."""
    masked = []
    first = second = ""  # the two words before
    for word in words:
        of_option = second.startswith("-") or first.startswith("-")  # -genv NAME VALUE
        is_value = of_option and OPTION.fullmatch(second) and is_secret(second)
        masked.append(MASK if is_value and not word.startswith("-") else mask(word))
        first = second
        second = word
    return masked


def masked(name: str, value: Any) -> Any:
    """A value of the configuration, masked at every depth, as it may be recorded; null and booleans
    stay."""
    if isinstance(value, dict):
        return {key: masked(str(key), entry) for key, entry in value.items()}
    if isinstance(value, list) and all(isinstance(entry, str) for entry in value):
        return [MASK] * len(value) if is_secret(name) else _mask_words(value)
    if isinstance(value, list):
        return [masked(name, entry) for entry in value]
    if is_secret(name) and value is not None and not isinstance(value, bool):
        return MASK
    return mask(value) if isinstance(value, str) else value


def masked_override(text: str) -> str:
    """An override as it may be recorded: KEY='***' if KEY, or a name in its mapping, names a
    credential."""
    match = OVERRIDE.fullmatch(text)
    if match is None:
        return mask(text)
    signs, key, value = match.groups()
    if is_secret(key):
        return f"{signs}{key}='{MASK}'"
    if value.startswith(("{", "[")):
        return f"{signs}{key}={_mask_list(MAP_ENTRY.sub(_mapped, value))}"
    return f"{signs}{key}={_mask_quoted(value)}"


def _mask_list(value: str) -> str:
    """A list in Hydra's grammar, masked as its entries are."""
    entries = LIST_ENTRY.findall(value)
    masked = iter(_mask_words([_unquoted(entry) for entry in entries]))

    def replaced(match: re.Match[str]) -> str:
        quote = match[0][0] if _unquoted(match[0]) != match[0] else ""
        return f"{quote}{next(masked)}{quote}"

    return LIST_ENTRY.sub(replaced, value)


def _mapped(match: re.Match[str]) -> str:
    name, colon, value = match.groups()
    return f"{name}{colon}'{MASK}'" if is_secret(name) else f"{name}{colon}{_mask_quoted(value)}"


def _mask_quoted(value: str) -> str:
    """A value in Hydra's grammar, masked within its quotes."""
    plain = _unquoted(value)
    return mask(value) if plain == value else f"{value[0]}{mask(plain)}{value[0]}"


def _unquoted(value: str) -> str:
    is_quoted = len(value) > 1 and value[0] in "'\"" and value[-1] == value[0]
    return value[1:-1] if is_quoted else value
