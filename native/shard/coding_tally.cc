#include "shard/coding_tally.h"

#include <algorithm>
#include <utility>

namespace halfstep::shard {

void CodingTally::note(std::string_view name_space, ConstBytes value) {
  wire::CodingChoicesView choices;
  if (!wire::parse_coding_choices(value, &choices).ok()) return;
  auto at = said_.find(name_space);
  if (at == said_.end()) {
    if (said_.size() == kNamespacesMax) return;
    at = said_.emplace(name_space, Said{}).first;
  }
  for (const std::byte reason : choices.reasons) {
    ++at->second.blocks[std::min(std::to_integer<uint32_t>(reason), wire::kCodingReasons)];
  }
  at->second.known = choices.known;
}

void CodingTally::keep(const std::vector<store::NamespaceInfo>& namespaces) {
  std::map<std::string, Said, std::less<>> kept;
  for (const store::NamespaceInfo& info : namespaces) {
    if (const auto at = said_.find(info.name); at != said_.end()) kept.insert(said_.extract(at));
  }
  said_ = std::move(kept);
}

void CodingTally::collect(std::string_view name_space, Metrics* out) const {
  const auto at = said_.find(name_space);
  if (at == said_.end()) return;
  const auto& [name, said] = *at;
  for (uint32_t i = 0; i <= wire::kCodingReasons; ++i) {
    if (said.blocks[i] == 0) continue;
    const std::string_view reason =
        i < wire::kCodingReasons ? wire::coding_reason_name(static_cast<wire::CodingReason>(i)) : "other";
    out->counters.push_back({"halfstep_coding_choices_total",
                             {{"namespace", name}, {"reason", std::string(reason)}},
                             static_cast<double>(said.blocks[i])});
  }
  const std::pair<const char*, uint64_t> known[] = {{"encode_bytes_per_s", said.known.encode_bytes_per_s},
                                                    {"decode_bytes_per_s", said.known.decode_bytes_per_s},
                                                    {"link_bytes_per_s", said.known.link_bytes_per_s},
                                                    {"service_bytes_per_s", said.known.service_bytes_per_s},
                                                    {"ratio_milli", said.known.ratio_milli}};
  for (const auto& [of, value] : known) {
    out->gauges.push_back({"halfstep_coding_known", {{"namespace", name}, {"of", of}}, static_cast<double>(value)});
  }
}

}  // namespace halfstep::shard
