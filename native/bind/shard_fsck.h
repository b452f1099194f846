// shard_fsck.h — halfstep._shard.fsck: the offline check of a store, for `halfstep fsck`.
#pragma once

#include <nanobind/nanobind.h>

namespace halfstep::bind {

void add_fsck(nanobind::module_& module);

}  // namespace halfstep::bind
