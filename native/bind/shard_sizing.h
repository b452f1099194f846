// shard_sizing.h — halfstep._shard.size_store: how large a store has to be (store/sizing.h).
#pragma once

#include <nanobind/nanobind.h>

namespace halfstep::bind {

void add_sizing(nanobind::module_& module);

}  // namespace halfstep::bind
