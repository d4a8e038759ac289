"""Run the notebooks here, in place or into another folder, and leave outputs without paths and
times.

python notebooks/execute.py [NAME...]
"""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import nbformat
from nbclient import NotebookClient

HERE = Path(__file__).parent
PLAIN = {"kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
         "language_info": {"name": "python"}}  # fmt: skip
CELL_S = 120


def execute(path: Path) -> Any:
    """The notebook with its outputs, as it is to be kept; raises nbclient's CellExecutionError."""
    book = nbformat.read(path, as_version=4)
    where = {"metadata": {"path": str(HERE)}}
    NotebookClient(book, timeout=CELL_S, kernel_name="python3", resources=where).execute()
    book.metadata = nbformat.from_dict(PLAIN)
    for cell in book.cells:
        cell.metadata.pop("execution", None)
        for output in cell.get("outputs", ()):
            if "image/png" in output.get("data", {}):
                output["data"]["text/plain"] = "a figure"
    return book


if __name__ == "__main__":
    names = sys.argv[1:] or [path.stem for path in sorted(HERE.glob("*.ipynb"))]
    for name in names:
        nbformat.write(execute(HERE / f"{name}.ipynb"), HERE / f"{name}.ipynb")
        print(f"{name}: done")
