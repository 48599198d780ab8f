# SPDX-License-Identifier: Apache-2.0
"""Import rules beyond the layers: who may make which calls, and where modules lie."""

from __future__ import annotations

import ast
import re
import sys
from functools import cache
from graphlib import CycleError, TopologicalSorter
from pathlib import Path
from typing import TYPE_CHECKING, Final

import pytest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator

ROOT: Final = Path(__file__).resolve().parent.parent
PACKAGE: Final = ROOT / "collectord"
MODULES: Final = sorted(PACKAGE.rglob("*.py"))

# Packages that do no I/O, and what of the standard library none of their modules imports. Who may
# import which package is in pyproject.toml, for import-linter.
PURE: Final = ("codec", "facts", "plan", "programs", "text")
IMPURE_MODULES: Final = ("os", "time")
# Modules beside the packages, and names that two packages have for the same part: the one that all
# their others are built on.
LOOSE: Final = {"__init__", "__main__", "errors", "model"}
SHARED_NAMES: Final = {"base": {"sink", "source"}}
FOREIGN_FUNCTIONS: Final = ("ctypes", "_ctypes", "cffi")
SYSTEM_CALLS: Final = "collectord._native._syscalls"
CARRIED_OUT: Final = "collectord.kernel.linux"
# The seam: what crosses it, and what whoever holds a ring's descriptor does without it.
SEAM: Final = ("collectord.kernel.port", "collectord.kernel.values", "collectord.kernel.mappings")
# Pairs of packages of which one names the other.
EDGES_MAX: Final = 140
PRIVILEGED_NAMES: Final = ("perf_event_open", "syscall", "ioctl")
# The port's own name for the call is the seam itself.
PORT_METHODS: Final = ("perf_event_open",)
# A program of its own, in a process of its own, under an interpreter that has bcc.
WORKER: Final = tuple(
    f"collectord.source.bcc_{name}" for name in ("worker", "program", "submissions")
)


def _name(path: Path) -> str:
    parts = path.relative_to(ROOT).with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


# The names of the modules, as an import has them.
KNOWN: Final = frozenset(map(_name, MODULES))


def _within(name: str, package: str) -> bool:
    return name == package or name.startswith(package + ".")


@cache
def _tree(path: Path) -> ast.Module:
    return ast.parse(path.read_text())


@cache
def _nodes(path: Path) -> tuple[ast.AST, ...]:
    return tuple(ast.walk(_tree(path)))


@cache
def _imports(path: Path) -> tuple[str, ...]:
    """Modules that a file imports at run time; those under `if TYPE_CHECKING` do not count."""
    return tuple(_imported(path, _walk_run_time(_tree(path))))


def _imported(path: Path, nodes: Iterable[ast.AST]) -> Iterator[str]:
    """Yield the modules that some nodes of a file import, and the names from them.

    A package is one of them where a name of its own is imported, not where only modules of it are.
    """
    package = _name(path) if path.name == "__init__.py" else _name(path).rpartition(".")[0]
    for node in nodes:
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                above = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*above, base] if base else above)
            names = [f"{base}.{alias.name}" for alias in node.names]
            if not KNOWN.issuperset(names):
                yield base
            yield from names


def _walk_run_time(node: ast.AST) -> Iterator[ast.AST]:
    """Yield what may be an import; expressions have none in them, and are most of a module."""
    yield node
    for child in ast.iter_child_nodes(node):
        if isinstance(child, ast.If) and ast.unparse(child.test).endswith("TYPE_CHECKING"):
            for other in child.orelse:
                yield from _walk_run_time(other)
        elif not isinstance(child, ast.expr):
            yield from _walk_run_time(child)


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if path.relative_to(PACKAGE).parts[0] in PURE],
    ids=_name,
)
def test_pure_packages_do_no_io(path: Path) -> None:
    """No module of theirs asks the operating system or a clock."""
    assert not {*_imports(path)} & {*IMPURE_MODULES}


def test_every_module_is_in_a_package() -> None:
    """Beside the packages are the entry, the errors and the model, and nothing else."""
    assert {path.stem for path in PACKAGE.glob("*.py")} == LOOSE


def test_a_modules_name_says_which_it_is() -> None:
    """Two packages have modules of one name only where these play the same part."""
    places: dict[str, set[str]] = {}
    for path in MODULES:
        places.setdefault(path.stem, set()).add(path.relative_to(PACKAGE).parts[0])
    shared = {name: found for name, found in places.items() if len(found) > 1}
    del shared["__init__"]
    assert shared == SHARED_NAMES


@pytest.mark.parametrize(
    "path",
    [path for path in MODULES if not _within(_name(path), "collectord.source")],
    ids=_name,
)
def test_nobody_behind_the_opening_names_a_kind_of_ring(path: Path) -> None:
    """Sources make rings of a kind; everybody else knows what all of them have."""
    froms = (node for node in _nodes(path) if isinstance(node, ast.ImportFrom))
    names = {
        alias.name
        for node in froms
        if node.module == "collectord.source.ring"
        for alias in node.names
    }
    assert names <= {"AuxHandle", "CounterFd", "RingHandle"}


@pytest.mark.parametrize(
    "path", [path for path in MODULES if _name(path) not in WORKER], ids=_name
)
def test_system_calls_are_made_by_the_binding(path: Path) -> None:
    """Nobody imports a foreign-function interface, or makes an ioctl untyped."""
    for imported in _imports(path):
        assert imported.partition(".")[0] not in FOREIGN_FUNCTIONS, imported
        assert imported != "fcntl.ioctl"
    for node in _nodes(path):
        if isinstance(node, ast.Attribute):
            assert ast.unparse(node) != "fcntl.ioctl", f"{path}:{node.lineno}"


@pytest.mark.parametrize(
    "path",
    [
        path
        for path in MODULES
        if not _within(_name(path), "collectord.kernel") and _name(path) not in WORKER
    ],
    ids=_name,
)
def test_privileged_calls_stay_behind_the_seam(path: Path) -> None:
    """Outside kernel/ nobody imports the system calls or makes a raw one."""
    for imported in _imports(path):
        assert not _within(imported, SYSTEM_CALLS), imported
    for node in _nodes(path):
        if isinstance(node, ast.Call):
            called = ast.unparse(node.func)
            last = called.rpartition(".")[2]
            if last in PORT_METHODS and "." in called:
                continue
            assert last not in PRIVILEGED_NAMES, f"{path}:{node.lineno}: {called}"


def test_the_kernel_is_passed_in() -> None:
    """The entry alone chooses who carries privileged calls out; all else is given a `Kernel`."""
    naming = set()
    for path in MODULES:
        for node in _nodes(path):
            names: list[str] = []
            if isinstance(node, ast.ImportFrom):
                names = [f"{node.module}.{alias.name}" for alias in node.names]
            elif isinstance(node, ast.Import):
                names = [alias.name for alias in node.names]
            if any(_within(name, CARRIED_OUT) for name in names):
                naming.add(_name(path))
    assert naming == {"collectord.__main__"}


def test_others_know_the_port_and_its_values() -> None:
    """Nobody else names a module of the kernel package, not even as a type."""
    found: dict[str, set[str]] = {}
    for path in MODULES:
        if _name(path) == "collectord.__main__" or _within(_name(path), "collectord.kernel"):
            continue
        for node in _nodes(path):
            if not isinstance(node, ast.ImportFrom) or node.module is None:
                continue
            full = [f"{node.module}.{alias.name}" for alias in node.names]
            named = {name if name in KNOWN else node.module for name in full}
            found.setdefault(_name(path), set()).update(
                name.removeprefix("collectord.kernel.")
                for name in named
                if _within(name, "collectord.kernel")
                and not any(_within(name, allowed) for allowed in SEAM)
            )
    assert not {name: past for name, past in found.items() if past}


def test_packages_know_few_others() -> None:
    """Pairs of packages of which one names the other, types included, stay few."""
    known = {path.name for path in PACKAGE.iterdir()} | {f"{name}.py" for name in LOOSE}
    pairs = set()
    for path in MODULES:
        own = path.relative_to(PACKAGE).parts[0]
        for name in _imported(path, _nodes(path)):
            other = name.removeprefix("collectord.").partition(".")[0]
            if _within(name, "collectord") and {other, f"{other}.py"} & known:
                pairs.add((own, other))
    edges = {(own.removesuffix(".py"), other) for own, other in pairs}
    assert len({(own, other) for own, other in edges if own != other}) <= EDGES_MAX


def _as_one(name: str) -> str:
    """Return the package within a package that a module is in, or else the module."""
    return ".".join(name.split(".")[:3])


@pytest.mark.parametrize("node", [str, _as_one], ids=["modules", "packages within packages"])
def test_no_import_leads_back(node: Callable[[str], str]) -> None:
    """No module reaches itself by what it imports, types and imports within functions included.

    Nor does a package within another one: what it imports of the other one does not import it.
    """
    graph: dict[str, set[str]] = {}
    for path in MODULES:
        own = node(_name(path))
        others = map(node, KNOWN.intersection(_imported(path, _nodes(path))))
        graph.setdefault(own, set()).update(set(others) - ({own} if node is _as_one else set()))
    try:
        TopologicalSorter(graph).prepare()
    except CycleError as error:
        pytest.fail(" imported by ".join(error.args[1]))


def test_the_bcc_worker_stands_alone() -> None:
    """Its files import the standard library, bcc and each other, and no module imports them."""
    own = {name.rpartition(".")[2] for name in WORKER}
    for path in MODULES:
        imported = set(_imports(path))
        if _name(path) in WORKER:
            roots = {name.partition(".")[0] for name in imported}
            assert roots <= {*sys.stdlib_module_names, "bcc", *own}, path
        else:
            assert not imported & {*WORKER, *own}, path


def test_core_is_plain_c() -> None:
    """The C core builds without Python: no file of it includes Python.h."""
    for path in (PACKAGE / "_native").rglob("*.[ch]"):
        included = re.findall(r'^\s*#\s*include\s*[<"]([^>"]+)', path.read_text(), re.MULTILINE)
        assert "Python.h" not in included, path
