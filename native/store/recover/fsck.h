// fsck.h — an offline look over a whole store: both copies of everything that has two, every frame, every payload.
// It writes nothing and mends nothing: what can be mended is mended by the next start (recovery.h). It reads as a start would
// and then goes on where a start trusts: frames behind a good footer, payloads below the watermark.
// Invariants: never refuses for what is damaged, short of both store headers; memory grows with the number of entries alone.
// Thread: one, blocking.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "base/clock.h"
#include "io/engine.h"
#include "store/format/header.h"
#include "store/format/namespace_info.h"

namespace halfstep::store {

struct FsckOptions {
  bool payloads = true;  // also read and verify every live block, and the frames of sealed segments
  // Steps done of all, now and then; false stops.
  std::function<bool(uint64_t done, uint64_t total)> progress;
  std::function<void(uint32_t millis)> pause;  // HeaderPatience's
};

enum class FsckKind : uint8_t {
  Crash,   // what a kill or a power cut leaves behind; nothing that was acknowledged as on media is missing
  Damage,  // a copy, or a page that others stand in for, is bad: media wrote or kept it wrong, nothing is lost by it
  Loss,    // blocks are gone
};
const char* fsck_kind_name(FsckKind kind) noexcept;

struct FsckFinding {
  FsckKind kind = FsckKind::Crash;
  std::string where;  // "segment 12"; of a store with several shards "shard 1, segment 12"
  std::string what;   // a sentence: what it is and what the next start does about it
};

enum class FsckSegmentState : uint8_t { Unused, Sealed, Walked, Empty, Unreadable, Bad };
const char* fsck_state_name(FsckSegmentState state) noexcept;

struct FsckSegment {
  uint32_t shard = 0;
  uint32_t number = 0;  // of the shard's
  FsckSegmentState state = FsckSegmentState::Unused;
  uint64_t generation = 0;
  uint32_t frames = 0;
  uint32_t pages_used = 0;  // by frames
  uint32_t entries = 0;
  uint32_t blocks_live = 0;
  uint64_t bytes_live = 0;  // of their extents
  uint32_t pages_bad = 0;
  uint32_t blocks_bad = 0;
};

struct FsckReport {
  format::StoreHeader header;
  std::vector<NamespaceInfo> namespaces;
  uint32_t layouts = 0;
  uint32_t scopes = 0;
  uint64_t log_pages_bad = 0;
  uint64_t tombstones = 0;
  std::vector<FsckSegment> segments;
  uint64_t blocks_live = 0, bytes_live = 0;
  // Entries that name no live block, by why.
  uint64_t superseded = 0, deleted = 0, expired = 0, dead_scope = 0, gone = 0, unreadable_entries = 0;
  uint64_t payloads_checked = 0, payload_bytes = 0, payloads_bad = 0;
  std::vector<FsckFinding> findings;
  bool clean_stop = false;
  bool complete = true;  // false: stopped by `progress`

  bool has(FsckKind kind) const noexcept;
};

// Fault: no store here, a newer format, both headers damaged, or stopped while one was looked for.
Fault fsck(io::Engine& engine, const Clock& clock, const FsckOptions& options, FsckReport* report);

}  // namespace halfstep::store
