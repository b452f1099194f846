// features.h — what a server says in its greeting that it can do beyond version 1 (docs/wire-protocol.md).
#pragma once

#include <cstdint>

namespace halfstep::wire {

// HelloServer::features
inline constexpr uint32_t kFeatureWait = 1;          // kBatchWait is known
inline constexpr uint32_t kFeaturePlace = 2;         // regions are taken, over RDMA (places.h)
inline constexpr uint32_t kFeaturePrefetchKind = 4;  // UntilRecord::flags of a prefetch may say its kind
inline constexpr uint32_t kFeaturePlaceKeys = 8;     // PlaceKeys are taken

}  // namespace halfstep::wire
