"""Take the schemas of our manifests' kinds from the package kubernetes-validate: python take.py
FOLDER > core.json.

FOLDER is its unpacked kubernetes_validate/kubernetes-json-schema/vX.Y.Z-local-strict.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

HERE = "/api/_definitions.json#/$defs/"
CORE = "io.k8s.api.core.v1"
BATCH = "io.k8s.api.batch.v1"
ROOTS = [
    *(f"{BATCH}.{kind}" for kind in ("Job", "CronJob")),
    *(f"{CORE}.{kind}" for kind in ("Pod", "PodTemplateSpec", "PersistentVolumeClaim")),
]


def bare(schema: Any) -> Any:
    """Without prose and hints for tools; references stay within the file."""
    if isinstance(schema, list):
        return [bare(item) for item in schema]
    if not isinstance(schema, dict):
        return schema.replace(HERE, "#/$defs/") if isinstance(schema, str) else schema
    return {
        key: bare(value)
        for key, value in schema.items()
        if not (key == "description" and isinstance(value, str))
        and not key.startswith("x-kubernetes")
    }


def names(schema: Any) -> set[str]:
    """The definitions that a schema refers to."""
    if isinstance(schema, dict):
        own = {schema["$ref"].rpartition("/")[2]} if isinstance(schema.get("$ref"), str) else set()
        return own.union(*(names(value) for value in schema.values()))
    return (
        set[str]().union(*(names(item) for item in schema)) if isinstance(schema, list) else set()
    )


def main(folder: Path) -> None:
    everything = json.loads((folder / "_definitions.json").read_text())["$defs"]
    wanted = list(ROOTS)
    taken = dict[str, Any]()
    while wanted:
        name = wanted.pop()
        if name not in taken:
            taken[name] = bare(everything[name])
            wanted += names(taken[name])
    version = folder.name.partition("-")[0]
    print(
        json.dumps({"$comment": f"Kubernetes {version}", "$defs": taken}, indent=1, sort_keys=True)
    )


if __name__ == "__main__":
    main(Path(sys.argv[1]))
