"""The published schema of rows is made from their columns."""

from __future__ import annotations

import json

import jsonschema
from places import ROOT
from row_schema import row_schema


def test_the_published_schema_is_that_of_the_columns() -> None:
    """python tools/schema/row_schema.py > docs/schemas/row.json"""
    assert json.loads((ROOT / "docs/schemas/row.json").read_text()) == row_schema()
    jsonschema.Draft202012Validator.check_schema(row_schema())
