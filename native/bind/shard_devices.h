// shard_devices.h — halfstep._shard.look_at_backing and make_store: for `halfstep device`. And a backing's facts as a dict, for
// them and for the daemon.
#pragma once

#include <nanobind/nanobind.h>

namespace halfstep::io {
struct BackingFacts;
}

namespace halfstep::bind {

nanobind::dict backing_of(const io::BackingFacts& facts);
void add_devices(nanobind::module_& module);

}  // namespace halfstep::bind
