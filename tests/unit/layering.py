"""The import and include graph of the tree, and the rules that `docs/architecture.md` draws. test_layering.py checks them.

    tools -> {doctor -> daemon, connectors -> tier -> client} -> bind -> mount -> {shard, peer} -> store -> {io, ...} -> base

The rules are data at the top; each broken rule is one line that names the file, what it did and the repair.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

SIBLINGS = frozenset({"io", "index", "compress", "rdma", "gpu", "wire", "net"})

NATIVE_MAY_INCLUDE: Mapping[str, frozenset[str]] = {
    "base": frozenset(),
    **{folder: frozenset({"base"}) for folder in SIBLINGS},
    "net": frozenset({"wire", "rdma", "base"}),  # docs/adr/0001, 0020
    "store": SIBLINGS | {"base"},
    "shard": SIBLINGS | {"store", "base"},
    "peer": frozenset({"wire", "net", "rdma", "gpu", "compress", "base"}),
    # A daemon whose store is another daemon: both ends in one process (docs/adr/0021).
    "mount": SIBLINGS | {"store", "shard", "peer", "base"},
    "bind": SIBLINGS | {"mount", "shard", "peer", "store", "base"},
}

# Rooms inside a folder, ground first: a room may include from itself and from those before it, and the folder's own files from
# all of them. A folder with rooms has no others.
ROOMS: Mapping[str, tuple[str, ...]] = {
    "store": (
        *("format", "durable", "catalog", "memory", "account"),
        *("segment", "write", "read", "reclaim", "recover"),
    ),
}

# Who builds a folder's parts. A part is told in its constructor what it depends on, and never asks its owner.
OWNER_OF_PARTS: Mapping[str, str] = {"store": "StoreImpl"}

# A unit is x.h and x.cc. Units whose includes form a ring can only be understood together: two are a pair, three a knot.
KNOT_UNITS_MAX = 2

# In bind/, a file's first word says which module it belongs to: the client's never links the daemon's half.
BIND_MAY_NOT_INCLUDE: Mapping[str, frozenset[str]] = {
    "peer": frozenset({"mount", "shard", "store", "io", "index"}),
    "shard": frozenset({"peer"}),
    "store": frozenset({"mount", "peer", "shard", "net"}),
}

# A header of somebody else's, and the one folder that may know it.
HOME_OF_HEADER: Mapping[str, str] = {
    "Python.h": "bind",
    "nanobind/": "bind",
    "liburing": "io",
    "isa-l": "base",
    "zstd.h": "compress",
    "infiniband/": "rdma",
}

# Python: folders of src/halfstep, and three groups at its root: `face` is __init__.py, `bind` the extension modules,
# `base` every other module there (errors, keys, ...).
_LOW = frozenset({"base", "bind"})
PYTHON_MAY_IMPORT: Mapping[str, frozenset[str]] = {
    "bind": frozenset(),
    "base": _LOW,
    **dict.fromkeys(("io", "rdma", "index", "compress"), _LOW),
    "daemon": _LOW | {"io", "rdma", "index", "compress"},
    # The tier is a face of the client, which makes one when it is asked for it.
    "client": _LOW | {"rdma", "compress", "tier"},
    "tier": _LOW | {"client", "compress"},
    "face": _LOW | {"client"},
    # What identity, context, priority and reuse are is said in the tier once, and in no connector again.
    "connectors": frozenset({"base", "tier"}),
    # It asks the host what a daemon needs of it, and knows the daemon by its settings alone.
    "doctor": _LOW | {"daemon", "io"},
    "tools": _LOW | {"face", "daemon", "client", "doctor", "tier", "connectors", "io", "rdma", "index", "compress"},
}

EXTENSION_MODULES = ("_peer", "_shard", "_store")
NAMES_THAT_SAY_NOTHING = frozenset({"util", "utils", "helper", "helpers", "common", "misc", "manager2", "v1"})

LINES_MAX = 1000
# Files that were over LINES_MAX when they were listed, and the lines they had. A number here only ever falls.
LINES_AT_MOST: Mapping[str, int] = {}


def native_files(root: Path) -> list[Path]:
    return sorted(path for suffix in ("h", "cc") for path in (root / "native").rglob(f"*.{suffix}"))


def python_files(root: Path) -> list[Path]:
    return sorted((root / "src" / "halfstep").rglob("*.py"))


# --- native --------------------------------------------------------------------------------------------------------------


def includes(path: Path) -> Iterator[tuple[int, str]]:
    for number, line in enumerate(path.read_text().splitlines(), 1):
        found = re.match(r"\s*#\s*include\s*[<\"]([^>\"]+)[>\"]", line)
        if found:
            yield number, found[1]


def cmake_links(root: Path, folder: str) -> frozenset[str] | None:
    """The LINKS of a folder's library, or None where it makes none."""
    listing = root / "native" / folder / "CMakeLists.txt"
    text = listing.read_text() if listing.exists() else ""
    found = re.search(r"halfstep_library\(\s*(\w+)(?:\s+LINKS((?:\s+[a-z]+)*))?", text)
    return frozenset((found[2] or "").split()) if found else None


def native_faults(root: Path) -> Iterator[str]:
    for path in native_files(root):
        relative = path.relative_to(root)
        folder = relative.parts[1]
        if folder not in NATIVE_MAY_INCLUDE:
            yield f"{relative}: native/{folder}/ has no place in the layers; add it to NATIVE_MAY_INCLUDE or move the file"
            continue
        for line, target in includes(path):
            for fault in include_faults(root, folder, path.stem, target):
                yield f"{relative}:{line}: {fault}"


def room_faults(root: Path) -> Iterator[str]:
    for folder, rooms in ROOMS.items():
        home = root / "native" / folder
        for path in sorted(p for p in native_files(root) if home in p.parents):
            relative = path.relative_to(root)
            room = path.relative_to(home).parts[0] if path.parent != home else ""
            if room and room not in rooms:
                yield f"{relative}: native/{folder}/{room}/ is no room of {folder}; add it to ROOMS or move the file"
                continue
            # Tests drive a room from above.
            if not room or path.stem.endswith(("_test", "_fuzz")):
                continue
            for line, target in includes(path):
                parts = target.split("/")
                if parts[0] != folder:
                    continue
                above = rooms[rooms.index(room) + 1 :]
                if len(parts) == 2 or parts[1] in above:
                    yield (
                        f"{relative}:{line}: includes {target}: {folder}/{room} -> {parts[1]}; rooms do not look up: let it be "
                        "called through an interface of this room's own, or move what is shared to a room below"
                    )


def part_faults(root: Path) -> Iterator[str]:
    for folder, owner in OWNER_OF_PARTS.items():
        home = root / "native" / folder
        for path in native_files(root):
            if path.parent.parent != home or path.stem.endswith(("_test", "_fuzz")):
                continue
            relative = path.relative_to(root)
            text = path.read_text()
            if re.search(rf"\b{owner}\b", text):
                yield f"{relative}: names {owner}, who owns it; let the constructor take what this part uses of it"
            for field in unused_needs(path, text):
                yield f"{relative}: Needs has {field}, which nothing here uses; leave it out"


def unused_needs(header: Path, text: str) -> Iterator[str]:
    """Of a part with so many objects to work on that its constructor takes them as `struct Needs`: those that it never uses."""
    declared = re.search(r"struct Needs \{(.*?)\n  \};", text, re.DOTALL)
    if not declared:
        return
    unit = "".join(path.read_text() for path in sorted(header.parent.glob(f"{header.stem}*.cc"))) + text.replace(
        declared[0], ""
    )
    for field in re.findall(r"(\w+);", re.sub(r"//.*", "", declared[1])):
        kept_as = re.findall(rf"(\w+)\(needs\.{field}\)", unit)
        uses = sum(len(re.findall(rf"\b{name}\b(?!\(needs\.|;)", unit)) for name in kept_as)
        if uses + len(re.findall(rf"\bneeds\.{field}\b(?!\))", unit)) == 0:
            yield field


def knots(root: Path) -> Iterator[tuple[str, list[str]]]:
    """Folder and units of every ring of includes among units of one folder, tests aside."""
    native = root / "native"
    for folder in NATIVE_MAY_INCLUDE:
        units: dict[str, set[str]] = {}
        for path in native_files(root):
            name = path.relative_to(native).with_suffix("").as_posix()
            if name.startswith(f"{folder}/") and not name.endswith(("_test", "_fuzz")):
                targets = {target.rpartition(".")[0] for _, target in includes(path) if target.startswith(f"{folder}/")}
                units.setdefault(name, set()).update(targets - {name})
        yield from ((folder, ring) for ring in rings({unit: units[unit] & units.keys() for unit in units}))


def rings(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """Nodes that all reach each other, of more than one node (Tarjan)."""
    number: dict[str, int] = {}
    lowest: dict[str, int] = {}
    open_nodes: list[str] = []

    def visit(node: str) -> Iterator[list[str]]:
        number[node] = lowest[node] = len(number)
        open_nodes.append(node)
        for target in sorted(graph[node]):
            if target not in number:
                yield from visit(target)
                lowest[node] = min(lowest[node], lowest[target])
            elif target in open_nodes:
                lowest[node] = min(lowest[node], number[target])
        if lowest[node] == number[node]:
            at = open_nodes.index(node)
            ring = open_nodes[at:]
            del open_nodes[at:]
            if len(ring) > 1:
                yield sorted(ring)

    for node in sorted(graph):
        if node not in number:
            yield from visit(node)


def knot_faults(root: Path) -> Iterator[str]:
    for folder, ring in knots(root):
        if len(ring) > KNOT_UNITS_MAX:
            yield (
                f"native/{folder}: {len(ring)} units include each other in a ring, at most {KNOT_UNITS_MAX}: "
                f"{', '.join(ring)}; move their types into a file of their own, or let one call the other through an interface"
            )


def include_faults(root: Path, folder: str, stem: str, target: str) -> Iterator[str]:
    for header, home in HOME_OF_HEADER.items():
        if target.startswith(header) and folder != home:
            yield f"includes {target}, which only native/{home}/ may know; ask {home}/ for what you need of it"
    first = target.split("/")[0]
    if "/" not in target or first not in NATIVE_MAY_INCLUDE:
        # A library's header may be called as one of ours is: it is written in angles, and its home is known.
        if (root / "native" / folder / target).is_file() and target not in HOME_OF_HEADER:
            yield f'includes "{target}"; write it from the root of native/: "{folder}/{target}"'
        return
    if first == folder:
        return
    if first not in NATIVE_MAY_INCLUDE[folder]:
        if folder in SIBLINGS and first in SIBLINGS:
            remedy = "siblings do not know each other; move what both need to base/, or join them in store/ or shard/"
        else:
            remedy = f"arrows point down; let {first}/ call this through an argument, or move what is shared to base/"
        yield f"includes {target}: {folder} -> {first}; {remedy}"
        return
    owner = stem.split("_")[0]
    if folder == "bind" and not stem.endswith("_test") and first in BIND_MAY_NOT_INCLUDE.get(owner, frozenset()):
        yield f"includes {target}: the module _{owner} does not link {first}/; move this to the other module's files"
    links = cmake_links(root, folder)
    if links is not None and first not in links:
        yield f"includes {target}, but native/{folder}/CMakeLists.txt does not list {first} in LINKS; add it"


def native_graph(root: Path) -> dict[str, set[str]]:
    native = root / "native"
    return {
        str(path.relative_to(native)): {target for _, target in includes(path) if (native / target).exists()}
        for path in native_files(root)
    }


# --- Python --------------------------------------------------------------------------------------------------------------


def module_name(root: Path, path: Path) -> str:
    parts = path.relative_to(root / "src").with_suffix("").parts
    return ".".join(parts[:-1] if parts[-1] == "__init__" else parts)


class Import(NamedTuple):
    line: int
    module: str
    # Under `if TYPE_CHECKING:`. It is the forward declaration of Python: an arrow, but no part of a cycle.
    for_types: bool


def imports(root: Path, path: Path, modules: frozenset[str]) -> Iterator[Import]:
    """Every module of ours that `path` imports, wherever in the file: an import hidden in a function is an arrow too."""
    name = module_name(root, path)
    package = name if path.name == "__init__.py" else name.rpartition(".")[0]
    tree = ast.parse(path.read_text(), str(path))
    for_types = {
        id(inner)
        for node in ast.walk(tree)
        if isinstance(node, ast.If) and ast.unparse(node.test) in {"TYPE_CHECKING", "typing.TYPE_CHECKING"}
        for statement in node.body
        for inner in ast.walk(statement)
    }
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            targets = [alias.name for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            base = node.module or ""
            if node.level:
                parents = package.split(".")[: len(package.split(".")) - node.level + 1]
                base = ".".join([*parents, *([base] if base else [])])
            targets = [f"{base}.{a.name}" if f"{base}.{a.name}" in modules else base for a in node.names]
        else:
            continue
        for target in targets:
            if target.split(".")[0] == "halfstep":
                yield Import(node.lineno, target, id(node) in for_types)


def python_modules(root: Path) -> frozenset[str]:
    ours = {module_name(root, path) for path in python_files(root)}
    return frozenset(ours | {f"halfstep.{module}" for module in EXTENSION_MODULES})


def python_group(root: Path, module: str) -> str:
    parts = module.split(".")
    if len(parts) == 1:
        return "face"
    if parts[1] in EXTENSION_MODULES:
        return "bind"
    if parts[1] == "__main__":  # `python -m halfstep` is the command line
        return "tools"
    return parts[1] if (root / "src" / "halfstep" / parts[1]).is_dir() else "base"


def python_faults(root: Path) -> Iterator[str]:
    modules = python_modules(root)
    for path in python_files(root):
        relative = path.relative_to(root)
        source = python_group(root, module_name(root, path))
        if source not in PYTHON_MAY_IMPORT:
            yield f"{relative}: halfstep.{source} has no place in the layers; add it to PYTHON_MAY_IMPORT or move the file"
            continue
        for line, target, _ in imports(root, path, modules):
            group = python_group(root, target)
            if group == source or group in PYTHON_MAY_IMPORT[source]:
                continue
            if source == "client" and group == "daemon":
                remedy = "a client runs where no daemon is installed; move what both need to the root of the package"
            elif source == "connectors" and group in {"client", "face", "bind"}:
                remedy = "connectors are written on halfstep.tier and on nothing below it; let the tier say what you need"
            else:
                remedy = "arrows point down; pass it as an argument, or move what is shared to the root of the package"
            yield f"{relative}:{line}: imports {target}: {source} -> {group}; {remedy}"


def python_graph(root: Path) -> dict[str, set[str]]:
    modules = python_modules(root)
    return {
        module_name(root, path): {i.module for i in imports(root, path, modules) if not i.for_types} - {module_name(root, path)}
        for path in python_files(root)
    }


# --- both ----------------------------------------------------------------------------------------------------------------


def cycles(graph: Mapping[str, set[str]]) -> Iterator[list[str]]:
    """One cycle for every back edge of a depth-first walk, written from where it closes."""
    done: set[str] = set()
    for start in sorted(graph):
        path: list[str] = []
        pending: list[tuple[str, Iterator[str]]] = []
        if start not in done:
            path.append(start)
            pending.append((start, iter(sorted(graph[start]))))
        while pending:
            node, targets = pending[-1]
            target = next(targets, None)
            if target is None:
                done.add(node)
                path.pop()
                pending.pop()
            elif target in path:
                yield [*path[path.index(target) :], target]
            elif target not in done:
                path.append(target)
                pending.append((target, iter(sorted(graph.get(target, ())))))


def cycle_faults(root: Path) -> Iterator[str]:
    for graph in (native_graph(root), python_graph(root)):
        for cycle in cycles(graph):
            yield f"cycle {' -> '.join(cycle)}; move what they share into a file that both may know"


def name_faults(root: Path) -> Iterator[str]:
    for path in [*native_files(root), *python_files(root)]:
        relative = path.relative_to(root)
        for part in (*relative.parts[1:-1], path.stem):
            if NAMES_THAT_SAY_NOTHING & set(part.lower().split("_")):
                yield f"{relative}: the name '{part}' says nothing; name the noun that it holds"


def size_faults(root: Path, at_most: Mapping[str, int]) -> Iterator[str]:
    written = [path for folder in ("tests", "bench", "scripts") for path in sorted((root / folder).rglob("*.py"))]
    for path in [*native_files(root), *python_files(root), *written]:
        relative = path.relative_to(root).as_posix()
        lines = len(path.read_text().splitlines())
        bound = max(LINES_MAX, at_most.get(relative, 0))
        if lines > bound:
            yield f"{relative}: {lines} lines, at most {bound}; split it by noun or by life-cycle verb"
    for relative in at_most:
        if not (root / relative).exists():
            yield f"{relative}: is in LINES_AT_MOST but not in the tree; remove the entry"
