"""Arrows point down: the tree, checked by the rules of layering.py.

The second half of this file breaks every rule once in a small tree of its own, so that a check which cannot fail is noticed.
"""

from __future__ import annotations

import ast
from collections.abc import Iterable, Mapping
from pathlib import Path

import pytest
from tests.unit.layering import (
    LINES_AT_MOST,
    LINES_MAX,
    NATIVE_MAY_INCLUDE,
    cmake_links,
    cycle_faults,
    knot_faults,
    name_faults,
    native_faults,
    native_files,
    part_faults,
    python_faults,
    python_files,
    room_faults,
    size_faults,
)


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


def test_a_part_is_told_what_it_uses_and_never_asks_its_owner(repository: Path) -> None:
    report(part_faults(repository))


def test_no_folder_has_a_knot_of_more_than_two_units(repository: Path) -> None:
    report(knot_faults(repository))


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


# What runs in each step of an engine that decodes: `make connectors` sees that nothing else of ours does.
EACH_STEP = (
    *("connectors/paged", "connectors/mover", "connectors/steps", "connectors/jobs"),
    *("connectors/vllm", "connectors/vllm_connector", "tier/lookups", "tier/counts", "tier/waits"),
)


@pytest.mark.parametrize("module", EACH_STEP)
def test_what_runs_in_each_step_of_an_engine_has_no_lock(repository: Path, module: str) -> None:
    tree = ast.parse((repository / "src" / "halfstep" / f"{module}.py").read_text())
    taken = {alias.name for node in ast.walk(tree) if isinstance(node, ast.Import) for alias in node.names}
    taken |= {node.module or "" for node in ast.walk(tree) if isinstance(node, ast.ImportFrom)}
    assert not taken & {"threading", "multiprocessing", "_thread", "queue"}


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
    "src/halfstep/tier/__init__.py": "from halfstep.client import connect\n",
    "src/halfstep/connectors/transformers.py": "from halfstep.tier import connect\nimport torch\n",
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
        *part_faults(root),
        *knot_faults(root),
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
    "part that includes its owner": (
        "native/store/read/stager.h",
        '#include "store/store_impl.h"\n',
        "store/read -> store_impl.h; rooms do not look up",
    ),
    "part that asks its owner": (
        "native/store/read/stager.h",
        "class StoreImpl;\n",
        "names StoreImpl, who owns it",
    ),
    "part that is given what it does not use": (
        "native/store/read/stager.h",
        (
            "struct Stager {\n  struct Needs {\n    Memory& memory;  // of blocks\n    Clock& clock;\n  };\n"
            "  Stager(const Needs& needs) : memory_(needs.memory), clock_(needs.clock) {}\n"
            "  void turn() { memory_.turn(); }\n  Memory& memory_;\n  Clock& clock_;\n};\n"
        ),
        "Needs has clock, which nothing here uses",
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
    "connector below the tier": (
        "src/halfstep/connectors/an_engine.py",
        "from halfstep.client import Queue\n",
        "connectors -> client; connectors are written on halfstep.tier",
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
