// mount_server.h — a running mount: one shard over a MountStore, its thread and its listeners. What bind/ starts and stops.
// Order of the end: the shard takes no more requests -> its connections go -> puts have their time to reach the upstream ->
// requests to the upstream are cancelled and fenced -> the client cores go -> the arena.
// Thread: as of shard/server.h.
#pragma once

#include <memory>

#include "mount/options.h"
#include "shard/server.h"

namespace halfstep::mount {

// `config`: what of it says how clients come in and how much memory there is; one shard, and no store of its own.
Fault start(const shard::Config& config, const Options& options, std::unique_ptr<shard::Server>* out);

}  // namespace halfstep::mount
