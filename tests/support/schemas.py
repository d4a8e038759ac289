"""The schemas in docs/schemas, to check what tests leave."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cache
from typing import Any

import jsonschema
from places import ROOT


@cache
def _validator(name: str) -> jsonschema.Draft202012Validator:
    schema = json.loads((ROOT / "docs" / "schemas" / name).read_text())
    jsonschema.Draft202012Validator.check_schema(schema)
    return jsonschema.Draft202012Validator(schema)


def row_validator() -> jsonschema.Draft202012Validator:
    return _validator("row.json")


def check_record(record: Mapping[str, Any]) -> None:
    """Raises ValidationError where a run.json does not fit its schema."""
    _validator("run.json").validate(record)
