// peer_compress.h — the codecs for Python: single units, for tools and tests. Blocks of a client are coded by its core.
#pragma once

#include <nanobind/nanobind.h>

namespace halfstep::bind {

void bind_compress(nanobind::module_& m);

}  // namespace halfstep::bind
