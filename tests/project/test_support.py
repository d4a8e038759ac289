"""Helpers of tests: each is on the page that says what it is for, and somebody needs it."""

from __future__ import annotations

import re
from pathlib import Path

from loops import for_each
from places import ROOT, SUPPORT

FOLDERS = (SUPPORT, ROOT / "replay" / "tests" / "support")
PAGE = (ROOT / "docs" / "testing.md").read_text()
MODULES = [file for folder in FOLDERS for file in sorted(folder.rglob("*.py"))]
USERS = {
    file: file.read_text()
    for folder in ("tests", "replay/tests", "tools", "conftest.py")
    for kind in ("*.py", "*.yaml")
    for file in ((ROOT / folder).rglob(kind) if (ROOT / folder).is_dir() else [ROOT / folder])
}


@for_each("module", MODULES)
def test_a_helper_or_its_folder_is_on_the_page(module: Path) -> None:
    (folder,) = (folder for folder in FOLDERS if module.is_relative_to(folder))
    assert f"`{module.relative_to(folder).parts[0].removesuffix('.py')}`" in PAGE


@for_each("module", [module for module in MODULES if module.name != "__init__.py"])
def test_a_helper_has_a_user(module: Path) -> None:
    name = re.compile(rf"\b{module.stem}\b")
    assert any(name.search(text) for file, text in USERS.items() if file != module)
