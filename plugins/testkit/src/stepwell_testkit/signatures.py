"""Whether a double's methods take what the library's take: read from source, since libraries may need a GPU to load."""

from __future__ import annotations

import ast
from collections.abc import Iterable
from pathlib import Path


def parameters(source: Path, name: str) -> dict[str, list[str]]:
    """For each method of the class of that name, or field of a dataclass under `__init__`, what it takes, in order."""
    tree = ast.parse(source.read_text())
    found = next((node for node in ast.walk(tree) if isinstance(node, ast.ClassDef) and node.name == name), None)
    if found is None:
        return {}
    fields = [
        node.target.id for node in found.body if isinstance(node, ast.AnnAssign) and isinstance(node.target, ast.Name)
    ]
    methods = {node.name: _names(node.args) for node in found.body if isinstance(node, ast.FunctionDef)}
    return {"__init__": fields, **methods}


def apart(double: Path, library: Path, name: str, methods: Iterable[str]) -> list[str]:
    """How the double's class differs from the library's in these methods, a line each."""
    ours, theirs = parameters(double, name), parameters(library, name)
    return [
        f"{name}.{method}: the library takes {theirs.get(method)}, the double {ours.get(method)}"
        for method in methods
        if ours.get(method) is None or ours[method] != theirs.get(method, [])[: len(ours[method])]
    ]


def _names(arguments: ast.arguments) -> list[str]:
    listed = [*arguments.posonlyargs, *arguments.args, *arguments.kwonlyargs]
    return [argument.arg for argument in listed if argument.arg != "self"]
