"""The JSON schema of a line of cases.jsonl, which has the columns of cases.parquet."""

from __future__ import annotations

import json
import sys
from typing import Any, get_args

from commbench.core.states import CaseStatus
from commbench.core.variables import Kind
from commbench.results.columns import SCHEMA_VERSION, TABLES, Column

TYPES: dict[Kind, dict[str, Any]] = {
    "text": {"type": ["string", "null"]},
    "integer": {"type": ["integer", "null"]},
    "number": {"type": ["number", "null"]},
    "flag": {"type": ["boolean", "null"]},
    "texts": {"type": ["array", "null"], "items": {"type": "string"}},
    "numbers": {"type": ["array", "null"], "items": {"type": ["number", "null"]}},
    "integers": {"type": ["array", "null"], "items": {"type": "integer"}},
    "map": {"type": ["object", "null"], "additionalProperties": {"type": "string"}},
    "time": {"type": ["string", "null"], "format": "date-time"},
}
STATUS = {"enum": list(get_args(CaseStatus))}


def row_schema() -> dict[str, Any]:
    """Draft 2020-12. Units are in the descriptions, and in the names."""
    properties = {column.name: _property(column) for column in TABLES["cases"]}
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "title": "commbench: a case",
        "type": "object",
        "properties": {"schema_version": {"const": SCHEMA_VERSION}, **properties},
        "required": ["schema_version", "run_id", "case_id", "status"],
        "additionalProperties": False,
    }


def _property(column: Column) -> dict[str, Any]:
    unit = f" [{column.unit}]" if column.unit else ""
    kind = STATUS if column.name == "status" else TYPES[column.kind]
    return {**kind, "description": f"{column.meaning}{unit}"}


if __name__ == "__main__":  # python tools/schema/row_schema.py > docs/schemas/row.json
    json.dump(row_schema(), sys.stdout, indent=2)
    sys.stdout.write("\n")
