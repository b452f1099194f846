// coding_tally.h — what clients say of the blocks that they offer: coded or raw, why, and what the newest choice knew.
// Of each namespace. Invariant: no answer depends on it, and it has at most kNamespacesMax names, whatever clients say.
// Thread: the shard's.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "shard/samples.h"
#include "store/format/namespace_info.h"
#include "wire/coding_choices.h"

namespace halfstep::shard {

class CodingTally {
 public:
  static constexpr size_t kNamespacesMax = 4096;

  // value: a CodingChoices that has been parsed.
  void note(std::string_view name_space, ConstBytes value);
  // What is known of namespaces that are no more is forgotten.
  void keep(const std::vector<store::NamespaceInfo>& namespaces);
  void collect(std::string_view name_space, Metrics* out) const;

 private:
  struct Said {
    std::array<uint64_t, wire::kCodingReasons + 1> blocks{};  // the last: a reason that this build does not know
    wire::CodingKnown known;
  };
  std::map<std::string, Said, std::less<>> said_;
};

}  // namespace halfstep::shard
