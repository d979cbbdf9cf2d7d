"""What the tests themselves must not do."""

import ast
from collections.abc import Iterator
from pathlib import Path

TESTS = Path(__file__).parent


def is_private(name: str) -> bool:
    return name.startswith("_") and not name.startswith("__")


def private_names(tree: ast.Module) -> Iterator[str]:
    """Yield the private names of the product that a test imports, reads or patches."""
    imported = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.ImportFrom) and str(node.module).startswith("perfdag"):
            imported |= {alias.asname or alias.name for alias in node.names}
            yield from (alias.name for alias in node.names if is_private(alias.name))
    for node in ast.walk(tree):
        match node:
            case ast.Attribute(value=ast.Name(id=owner), attr=name) if owner in imported:
                words = [name]
            case ast.Call(
                func=ast.Attribute(attr="setattr"),
                args=[ast.Name(id=owner), ast.Constant(name), *_],
            ) if owner in imported:
                words = [str(name)]
            case ast.Constant(value=str(path)) if path.startswith("perfdag."):
                words = path.split(".")
            case _:
                words = []
        yield from filter(is_private, words)


def test_tests_use_public_names() -> None:
    private = {
        str(file.relative_to(TESTS)): list(private_names(ast.parse(file.read_text())))
        for file in TESTS.rglob("*.py")
    }
    assert {file: names for file, names in private.items() if names} == {}
