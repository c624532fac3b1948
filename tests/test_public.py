"""The public names: what `import twoprong` gives, and what it does not load."""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

import twoprong as tp

HEAVY = ("matplotlib", "jinja2", "PIL", "typer", "rich")


def loaded(code: str, *modules: str) -> list[str]:
    """Which of the modules a fresh process has loaded after the code."""
    code += f"\nimport sys\nprint(*[name for name in {modules} if name in sys.modules])"
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout.split()


def test_importing_the_package_loads_nothing_heavy():
    assert loaded("import twoprong", "torch", "numpy", "pydantic", *HEAVY) == []


def test_all_public_names_together_load_torch_and_nothing_for_pages_pictures_or_terminals():
    assert loaded("from twoprong import *\nevaluate, fit, DUNet, attacks.ATTACKS", "torch", *HEAVY) == ["torch"]


def test_every_public_name_comes_from_the_module_that_defines_it():
    for name in tp.__all__:
        found = getattr(tp, name)
        home = f"twoprong.{tp._HOMES.get(name, name)}"
        assert (found.__module__ if name in tp._HOMES else found.__name__) == home
        assert getattr(tp, name) is found
    assert {*tp._HOMES} == {*tp.__all__} - {"attacks", "errors"}


def test_type_checkers_see_the_same_names():
    tree = ast.parse(Path(tp.__file__).read_text(encoding="utf-8"))
    (block,) = (node for node in tree.body if isinstance(node, ast.If))
    imported = {alias.name: node.module for node in block.body for alias in node.names}
    homes = {name: f"twoprong.{home}" for name, home in tp._HOMES.items()}
    assert imported == {**homes, "attacks": "twoprong", "errors": "twoprong"}


def test_public_names_are_listed_and_others_refused():
    assert dir(tp) == sorted(tp.__all__)
    with pytest.raises(AttributeError, match="module 'twoprong' has no attribute 'fitt'"):
        _ = tp.fitt
    with pytest.raises(ImportError, match="cannot import name 'fitt' from 'twoprong'"):
        from twoprong import fitt  # noqa: F401
