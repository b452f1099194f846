// shard_devices.h — halfstep._shard.look_at_backing and make_store: for `halfstep device`.
#pragma once

#include <nanobind/nanobind.h>

namespace halfstep::bind {

void add_devices(nanobind::module_& module);

}  // namespace halfstep::bind
