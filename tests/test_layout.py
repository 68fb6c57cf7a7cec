"""The rules of the tree that no linter knows."""

from __future__ import annotations

import ast
import inspect
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

import controller
import transferqueue as tq
import workers
from transferqueue.client.async_client import AsyncClient
from transferqueue.client.sync_client import Client

if TYPE_CHECKING:
    from collections.abc import Iterator

ROOT = Path(__file__).resolve().parents[1]
PACKAGES = ("transferqueue", "workers", "controller")
MAX_LINES = 420

ALLOWED_AT_ROOT = {
    "pyproject.toml", "README.md", "LICENSE", "constraints.txt",
    "transferqueue", "controller", "workers", "tests", "examples",
}  # fmt: skip


def modules(*packages: str) -> Iterator[Path]:
    for package in packages:
        yield from (ROOT / package).rglob("*.py")


def imports_of(path: Path) -> set[str]:
    """Top-level names of what a module imports when it is imported or used."""
    names = set()
    for node in ast.walk(ast.parse(path.read_text())):
        if isinstance(node, ast.Import):
            names |= {alias.name.split(".")[0] for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module.split(".")[0])
    return names


def test_the_root_holds_what_it_should() -> None:
    listed = subprocess.run(
        ["git", "ls-tree", "--name-only", "HEAD"], cwd=ROOT, capture_output=True, text=True
    )
    if listed.returncode:
        pytest.skip("not a git checkout")
    tracked = {name for name in listed.stdout.splitlines() if not name.startswith(".")}
    assert tracked <= ALLOWED_AT_ROOT


@pytest.mark.parametrize("path", list(modules(*PACKAGES)), ids=lambda p: str(p.relative_to(ROOT)))
def test_a_module_is_one_noun(path: Path) -> None:
    is_a_tree = path.name == "errors.py"  # one class a situation, read from its docstring
    assert is_a_tree or len(path.read_text().splitlines()) <= MAX_LINES
    assert path.stem not in {"utils", "util", "common", "helpers", "misc"}


def test_zmq_is_in_net_only_and_ray_in_files_named_for_it() -> None:
    for path in modules(*PACKAGES):
        names = imports_of(path)
        relative = path.relative_to(ROOT)
        if "zmq" in names:
            assert relative.parts[:2] == ("transferqueue", "net"), relative
        if "ray" in names:
            assert "ray" in path.stem, relative


def test_pickle_is_in_one_module() -> None:
    users = {
        str(path.relative_to(ROOT))
        for path in modules("transferqueue")
        if imports_of(path) & {"pickle", "cloudpickle", "dill"}
    }
    assert users <= {"transferqueue/wire/pickled.py", "transferqueue/view/serialization.py"}


def test_the_public_names_are_these() -> None:
    for package in (tq, workers, controller):
        assert sorted(package.__all__) == list(package.__all__)
        assert all(hasattr(package, name) for name in package.__all__)
    fixed = {"serve", "connect", "connect_async", "tag", "samplers", "BatchHandle", "FieldSpec"}
    assert fixed <= set(tq.__all__)


def test_the_two_faces_of_the_client_have_the_same_methods() -> None:
    only_async = {"prefetch"}  # a blocked thread takes nothing ahead
    for name in public_methods(AsyncClient):
        ours = inspect.signature(getattr(Client, name))
        theirs = inspect.signature(getattr(AsyncClient, name))
        assert ours.parameters.keys() == theirs.parameters.keys() - only_async, name
        for parameter in ours.parameters.values():
            assert parameter == theirs.parameters[parameter.name], name
    assert public_methods(Client) == public_methods(AsyncClient)


def public_methods(cls: type) -> set[str]:
    return {
        name
        for name, value in inspect.getmembers(cls, inspect.isfunction)
        if not name.startswith("_")
    }


@pytest.mark.parametrize(
    "module",
    [
        "transferqueue",
        "transferqueue.coordinator.server",
        "transferqueue.shard.server",
        "transferqueue.service.template",
    ],
)
def test_service_processes_need_neither_torch_nor_ray(module: str) -> None:
    code = (
        f"import sys, {module}\n"
        "heavy = {'torch', 'ray', 'tensordict', 'asyncio'} & set(sys.modules)\n"
        "sys.exit(f'imported {heavy}' if heavy else 0)"
    )
    done = subprocess.run([sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
