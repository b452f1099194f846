"""Arrows point down: the import and include graph of the tree, checked as `docs/architecture.md` draws it.

    tools -> {daemon, client, connectors} -> bind -> {shard, peer} -> store -> {io, index, ...} -> base

The rules are data at the top; each broken rule is one line that names the file, what it did and the repair. The second half
of this file breaks every rule once in a small tree of its own, so that a check which cannot fail is noticed.
"""

from __future__ import annotations

import ast
import re
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import pytest

SIBLINGS = frozenset({"io", "index", "compress", "rdma", "wire", "net"})

NATIVE_MAY_INCLUDE: Mapping[str, frozenset[str]] = {
    "base": frozenset(),
    **{folder: frozenset({"base"}) for folder in SIBLINGS},
    "net": frozenset({"wire", "base"}),  # docs/adr/0001
    "store": SIBLINGS | {"base"},
    "shard": SIBLINGS | {"store", "base"},
    "peer": frozenset({"wire", "net", "rdma", "compress", "base"}),
    "bind": SIBLINGS | {"shard", "peer", "store", "base"},
}

# Rooms inside a folder, ground first: a room may include from itself and from those before it, and the folder's own files from
# all of them. A folder with rooms has no others.
ROOMS: Mapping[str, tuple[str, ...]] = {
    "store": (
        *("format", "durable", "catalog", "memory", "account", "core"),
        *("segment", "write", "read", "reclaim", "recover"),
    ),
}

# A unit is x.h and x.cc. Units whose includes form a ring can only be understood together: two are a pair, three a knot.
KNOT_UNITS_MAX = 2
# Folders that had a larger knot when they were listed, and its units. A number here only ever falls.
KNOTS_AT_MOST: Mapping[str, int] = {"peer": 3, "shard": 17}

# In bind/, a file's first word says which module it belongs to: the client's never links the daemon's half.
BIND_MAY_NOT_INCLUDE: Mapping[str, frozenset[str]] = {
    "peer": frozenset({"shard", "store", "io", "index"}),
    "shard": frozenset({"peer"}),
    "store": frozenset({"peer", "shard", "net"}),
}

# A header of somebody else's, and the one folder that may know it.
HOME_OF_HEADER: Mapping[str, str] = {
    "Python.h": "bind",
    "nanobind/": "bind",
    "liburing": "io",
    "isa-l": "base",
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
    "tier": _LOW | {"client"},
    "face": _LOW | {"client"},
    "connectors": _LOW | {"client", "tier", "face", "compress"},
    "tools": _LOW | {"face", "daemon", "client", "tier", "connectors", "io", "rdma", "index", "compress"},
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


def knot_faults(root: Path, at_most: Mapping[str, int]) -> Iterator[str]:
    for folder, ring in knots(root):
        bound = max(KNOT_UNITS_MAX, at_most.get(folder, 0))
        if len(ring) > bound:
            yield (
                f"native/{folder}: {len(ring)} units include each other in a ring, at most {bound}: {', '.join(ring)}; move "
                "their types into a file of their own, or let one call the other through an interface"
            )


def include_faults(root: Path, folder: str, stem: str, target: str) -> Iterator[str]:
    for header, home in HOME_OF_HEADER.items():
        if target.startswith(header) and folder != home:
            yield f"includes {target}, which only native/{home}/ may know; ask {home}/ for what you need of it"
    first = target.split("/")[0]
    if "/" not in target or first not in NATIVE_MAY_INCLUDE:
        if (root / "native" / folder / target).is_file():
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


def report(faults: Iterable[str]) -> None:
    listed = list(faults)
    assert not listed, "\n" + "\n".join(listed)


def test_there_is_something_to_check(repository: Path) -> None:
    assert len(native_files(repository)) > 20
    assert len(python_files(repository)) > 5


def test_native_includes_point_down(repository: Path) -> None:
    report(native_faults(repository))


def test_rooms_inside_a_folder_do_not_look_up(repository: Path) -> None:
    report(room_faults(repository))


def test_no_folder_has_a_larger_knot_of_includes(repository: Path) -> None:
    report(knot_faults(repository, KNOTS_AT_MOST))


def test_knots_that_are_listed_are_there(repository: Path) -> None:
    largest: dict[str, int] = {}
    for folder, ring in knots(repository):
        largest[folder] = max(largest.get(folder, 0), len(ring))
    assert {folder: largest.get(folder, 0) for folder in KNOTS_AT_MOST} == dict(KNOTS_AT_MOST), "a smaller number is due"


def test_native_libraries_link_only_what_stands_below_them(repository: Path) -> None:
    for folder, allowed in NATIVE_MAY_INCLUDE.items():
        links = cmake_links(repository, folder) or frozenset()
        assert links <= allowed, f"native/{folder}/CMakeLists.txt links {sorted(links - allowed)}, which stand above it"


def test_python_imports_point_down(repository: Path) -> None:
    report(python_faults(repository))


def test_no_file_is_part_of_a_cycle(repository: Path) -> None:
    report(cycle_faults(repository))


def test_no_name_says_nothing(repository: Path) -> None:
    report(name_faults(repository))


def test_no_long_file_grew(repository: Path) -> None:
    report(size_faults(repository, LINES_AT_MOST))


# --- every rule can fail -------------------------------------------------------------------------------------------------

SOUND = {
    "native/base/status.h": "#pragma once\n",
    "native/base/build_info.h": "#pragma once\n",
    "native/base/crc.cc": "#include <isa-l.h>\n",
    "native/base/CMakeLists.txt": "halfstep_library(base THIRD_PARTY halfstep::isal)\n",
    "native/io/engine.h": '#include "base/status.h"\n#include <liburing.h>\n',
    "native/io/CMakeLists.txt": "halfstep_library(io LINKS base THIRD_PARTY halfstep::uring)\n",
    "native/index/table.h": '#include "base/status.h"\n',
    "native/wire/header.h": '#include "base/status.h"\n',
    "native/store/store.h": '#include "io/engine.h"\n#include "index/table.h"\n',
    "native/store/format/page.h": '#include "io/engine.h"\n',
    "native/store/read/reader.h": '#include "store/format/page.h"\n',
    "native/store/read/reader_test.cc": '#include "store/store.h"\n',
    "native/store/CMakeLists.txt": "halfstep_library(store\n  LINKS io index\n)\n",
    "native/shard/shard.h": '#include "store/store.h"\n#include "wire/header.h"\n',
    "native/peer/peer.h": '#include "wire/header.h"\n',
    "native/bind/peer_module.cc": '#include <nanobind/nanobind.h>\n#include "peer/peer.h"\n',
    "native/bind/shard_module.cc": '#include <Python.h>\n#include "shard/shard.h"\n',
    "native/bind/both_test.cc": '#include "shard/shard.h"\n#include "peer/peer.h"\n',
    "src/halfstep/__init__.py": "from halfstep.client import connect\nfrom .errors import Error\n",
    "src/halfstep/errors.py": "import os\n",
    "src/halfstep/client/__init__.py": "from halfstep.client.connection import connect\n",
    "src/halfstep/client/connection.py": "from halfstep import _peer\nfrom ..errors import Error\n",
    "src/halfstep/daemon/serve.py": "import halfstep._shard\n",
    "src/halfstep/connectors/transformers.py": "import halfstep\nimport torch\n",
    "src/halfstep/tools/cli.py": "def main():\n    from halfstep.daemon import serve\n    from halfstep import connect\n",
}


def plant(root: Path, files: Mapping[str, str]) -> Path:
    for name, text in files.items():
        path = root / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return root


def all_faults(root: Path) -> list[str]:
    return [
        *native_faults(root),
        *python_faults(root),
        *room_faults(root),
        *knot_faults(root, {}),
        *cycle_faults(root),
        *name_faults(root),
        *size_faults(root, {}),
    ]


def test_a_sound_tree_has_no_faults(tmp_path: Path) -> None:
    assert all_faults(plant(tmp_path, SOUND)) == []


BROKEN = {
    "include that points up": (
        "native/base/clock.h",
        '#include "store/store.h"\n',
        "base -> store; arrows point down",
    ),
    "include of a sibling": (
        "native/wire/body.h",
        '#include "io/engine.h"\n',
        "siblings do not know each other",
    ),
    "peer that knows the store": (
        "native/peer/cache.h",
        '#include "store/store.h"\n',
        "peer -> store",
    ),
    "room that looks up": (
        "native/store/format/header.h",
        '#include "store/read/reader.h"\n',
        "store/format -> read; rooms do not look up",
    ),
    "room that includes the facade": (
        "native/store/read/stager.h",
        '#include "store/store.h"\n',
        "store/read -> store.h; rooms do not look up",
    ),
    "room that is not listed": ("native/store/attic/old.h", "#pragma once\n", "is no room of store"),
    "include that CMake does not link": (
        "native/store/log.h",
        '#include "base/status.h"\n',
        "add it",
    ),
    "include without its folder": ("native/io/uring.cc", '#include "engine.h"\n', '"io/engine.h"'),
    "Python.h below bind": ("native/peer/gil.cc", "#include <Python.h>\n", "only native/bind/"),
    "nanobind below bind": (
        "native/shard/face.cc",
        "#  include <nanobind/ndarray.h>\n",
        "only native/bind/",
    ),
    "io_uring outside io": ("native/net/ring.cc", "#include <liburing.h>\n", "only native/io/"),
    "client module with the daemon's half": (
        "native/bind/peer_get.cc",
        '#include "io/engine.h"\n',
        "_peer does not link io/",
    ),
    "folder without a place": ("native/magic/wand.h", "#pragma once\n", "no place in the layers"),
    "client that imports the daemon": (
        "src/halfstep/client/embedded.py",
        "def start():\n    from halfstep.daemon import serve\n",
        "client -> daemon; a client runs where no daemon is installed",
    ),
    "relative import that points up": (
        "src/halfstep/daemon/admin.py",
        "from ..tools import cli\n",
        "daemon -> tools",
    ),
    "root module that imports the client": (
        "src/halfstep/keys.py",
        "import halfstep.client.connection\n",
        "base -> client",
    ),
    "Python folder without a place": (
        "src/halfstep/magic/__init__.py",
        "",
        "no place in the layers",
    ),
    "name that says nothing": ("native/store/segment_utils.h", "#pragma once\n", "says nothing"),
    "file that is too long": ("native/store/long.cc", "\n" * (LINES_MAX + 1), "split it by noun"),
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN.keys())
def test_a_broken_rule_is_one_fault_with_its_remedy(tmp_path: Path, broken: tuple[str, str, str]) -> None:
    name, text, remedy = broken
    faults = all_faults(plant(tmp_path, {**SOUND, name: text}))
    assert len(faults) == 1, faults
    assert faults[0].startswith(name)
    assert remedy in faults[0]


def test_a_knot_of_three_units_is_found_and_a_pair_is_not(tmp_path: Path) -> None:
    pair = {"native/io/a.h": '#include "io/b.h"\n', "native/io/b.h": "#pragma once\n", "native/io/b.cc": '#include "io/a.h"\n'}
    assert all_faults(plant(tmp_path, {**SOUND, **pair})) == []
    third = {
        "native/io/b.cc": '#include "io/c.h"\n',
        "native/io/c.h": "#pragma once\n",
        "native/io/c.cc": '#include "io/a.h"\n',
    }
    (fault,) = all_faults(plant(tmp_path, third))
    assert "native/io: 3 units include each other in a ring" in fault
    assert "io/a, io/b, io/c" in fault
    assert list(knot_faults(tmp_path, {"io": 3})) == []


def test_a_cycle_of_headers_is_found(tmp_path: Path) -> None:
    ring = {
        "native/index/a.h": '#include "index/b.h"\n',
        "native/index/b.h": '#include "index/c.h"\n',
        "native/index/c.h": '#include "index/a.h"\n',
    }
    assert list(cycle_faults(plant(tmp_path, {**SOUND, **ring}))) == [
        "cycle index/a.h -> index/b.h -> index/c.h -> index/a.h; move what they share into a file that both may know"
    ]


def test_a_cycle_of_modules_is_found_through_an_import_inside_a_function(tmp_path: Path) -> None:
    ring = {
        "src/halfstep/client/plan.py": "from halfstep.client.prefetch import run\n",
        "src/halfstep/client/prefetch.py": "def run():\n    from . import plan\n",
    }
    faults = list(cycle_faults(plant(tmp_path, {**SOUND, **ring})))
    assert len(faults) == 1
    assert "halfstep.client.plan -> halfstep.client.prefetch -> halfstep.client.plan" in faults[0]


def test_a_module_that_is_named_for_its_types_alone_closes_no_cycle(tmp_path: Path) -> None:
    back = {
        "src/halfstep/client/queue.py": "import halfstep.client.ticket\n",
        "src/halfstep/client/ticket.py": "if TYPE_CHECKING:\n    from halfstep.client.queue import Queue\n",
    }
    assert all_faults(plant(tmp_path, {**SOUND, **back})) == []
    up = {"src/halfstep/client/ticket.py": "if TYPE_CHECKING:\n    from halfstep.daemon.serve import Server\n"}
    assert "client -> daemon" in "".join(all_faults(plant(tmp_path, up)))


def test_a_listed_long_file_may_stay_but_not_grow(tmp_path: Path) -> None:
    name = "native/store/long.cc"
    plant(tmp_path, {**SOUND, name: "\n" * 1200})
    assert list(size_faults(tmp_path, {name: 1200})) == []
    assert list(size_faults(tmp_path, {name: 1199})) == [
        f"{name}: 1200 lines, at most 1199; split it by noun or by life-cycle verb"
    ]
    assert "remove the entry" in next(size_faults(tmp_path, {name: 1200, "native/store/gone.cc": 1500}))
