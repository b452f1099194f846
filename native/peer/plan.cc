#include "peer/plan.h"

#include <algorithm>

#include "base/check.h"

namespace halfstep::peer {
namespace {

// What one item moves; unknown lengths count as what the target has room for.
uint64_t item_bytes(const Ticket& ticket, const Section& section, uint32_t item) {
  if (ticket.is_put()) return section.offers[item].block_bytes;
  return ticket.is_get() ? section.target.room_bytes(item) : 0;
}

class Planner {
 public:
  Planner(Ticket& ticket, const PlanLimits& limits, const std::function<Request&()>& make)
      : ticket_(ticket), limits_(limits), make_(make) {}

  void run() {
    std::vector<std::vector<uint32_t>> first(ticket_.section_count);  // by section and shard: where its keys begin
    for (uint32_t s = 0; s < ticket_.section_count; ++s) first[s] = group_by_shard(ticket_.sections[s]);
    for (uint32_t shard = 0; shard < limits_.shards; ++shard) {
      const auto begin = [&](uint32_t s) { return first[s][shard]; };
      const auto end = [&](uint32_t s) { return first[s][shard + 1]; };
      plan_shard(shard, begin, end);
    }
  }

 private:
  // Items x selected parts of one request (docs/wire-protocol.md, section 6).
  static constexpr uint32_t kUnitsMax = 1U << 20;

  std::vector<uint32_t> group_by_shard(Section& section) {
    std::vector<uint32_t> first(limits_.shards + 1, 0);
    section.order.clear();
    if (limits_.shards == 1) {
      first[1] = section.key_count;
      return first;
    }
    std::vector<uint32_t> shard_of(section.key_count);
    for (uint32_t k = 0; k < section.key_count; ++k) {
      shard_of[k] = wire::route(section.engine_key(k), limits_.shards);
      ++first[shard_of[k] + 1];
    }
    for (uint32_t s = 0; s < limits_.shards; ++s) first[s + 1] += first[s];
    section.order.resize(section.key_count);
    std::vector<uint32_t> next(first.begin(), first.end() - 1);
    for (uint32_t k = 0; k < section.key_count; ++k) section.order[next[shard_of[k]]++] = k;
    return first;
  }

  uint64_t key_bytes(const Section& section, uint32_t position) const {
    const uint32_t key = section.order.empty() ? position : section.order[position];
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < section.component_count; ++c) {
      bytes += item_bytes(ticket_, section, key * section.component_count + c);
    }
    return bytes;
  }

  // All tables of one key go into one request, coded or not; bound_tables() sees to it that they fit.
  uint32_t table_bytes(const Section& section, uint32_t position) const {
    if (section.coding == nullptr) return 0;
    const uint32_t key = section.order.empty() ? position : section.order[position];
    uint64_t bytes = 0;
    for (uint32_t c = 0; c < section.component_count; ++c) {
      const wire::Offer& offer = section.offers[key * section.component_count + c];
      bytes += part_table_bytes(section.shape.parts_of(offer.block_bytes));
    }
    return static_cast<uint32_t>(std::min<uint64_t>(bytes, kPartTableBytesMax));
  }

  template <typename Begin, typename End>
  void plan_shard(uint32_t shard, const Begin& begin, const End& end) {
    uint64_t total = 0;
    for (uint32_t s = 0; s < ticket_.section_count; ++s) {
      for (uint32_t k = begin(s); k < end(s); ++k) total += key_bytes(ticket_.sections[s], k);
    }
    const uint32_t pieces = total < kSpreadBytesMin ? 1 : std::max(limits_.connections[shard], 1U);
    share_ = total / pieces;
    current_ = nullptr;
    for (uint32_t s = 0; s < ticket_.section_count; ++s) {
      const Section& section = ticket_.sections[s];
      for (uint32_t k = begin(s); k < end(s); ++k) {
        add(shard, s, k, key_bytes(section, k));
      }
    }
  }

  void add(uint32_t shard, uint32_t section, uint32_t position, uint64_t bytes) {
    const uint32_t items = ticket_.sections[section].component_count;
    const uint32_t units = items * ticket_.sections[section].units_per_item;
    const uint32_t tables = table_bytes(ticket_.sections[section], position);
    const bool new_slice = current_ == nullptr || current_->slices.back().section != section;
    if (current_ != nullptr) {
      const bool full = keys_ == limits_.keys_max || items_ + items > wire::kItemsMax || units_ + units > kUnitsMax ||
                        (new_slice && current_->slices.size() == wire::kSectionsMax) || tables_ + tables > kPartTableBytesMax;
      const bool shared_out = share_ > 0 && current_->weight_bytes + bytes / 2 >= share_ && current_->weight_bytes > 0;
      const bool large = limits_.bytes_max > 0 && current_->weight_bytes + bytes > limits_.bytes_max;
      if (full || shared_out || large) current_ = nullptr;
    }
    if (current_ == nullptr) {
      current_ = &make_();
      current_->shard = shard;
      ticket_.requests.push_back(current_);
      keys_ = items_ = units_ = tables_ = 0;
    }
    if (current_->slices.empty() || current_->slices.back().section != section) {
      current_->slices.push_back({static_cast<uint16_t>(section), position, 0});
    }
    ++current_->slices.back().count;
    ++keys_;
    items_ += items;
    units_ += units;
    tables_ += tables;
    current_->weight_bytes += bytes;
  }

  Ticket& ticket_;
  const PlanLimits& limits_;
  const std::function<Request&()>& make_;
  uint64_t share_ = 0;
  Request* current_ = nullptr;
  uint32_t keys_ = 0;
  uint32_t items_ = 0;
  uint32_t units_ = 0;
  uint32_t tables_ = 0;  // bytes of part tables
};

}  // namespace

// The components of a key are not parted, so what passes the bound travels plain.
void bound_tables(Request& request) {
  for (uint16_t s = 0; s < request.slices.size(); ++s) {
    Section& section = request.section(s);
    if (section.blocks.empty()) continue;
    uint32_t left = kPartTableBytesMax;
    for (uint32_t i = 0; i < request.items_of(s); ++i) {
      if (i % section.component_count == 0) left = kPartTableBytesMax;  // the next key
      CodedBlock& block = section.blocks[request.item_of(s, i)];
      if (block.plain()) continue;
      const uint32_t bytes = part_table_bytes(static_cast<uint32_t>(block.parts.size()));
      if (bytes <= left) {
        left -= bytes;
      } else {
        block.parts.clear();
        block.reason = wire::CodingReason::NoMemory;
      }
    }
  }
}

void plan(Ticket& ticket, const PlanLimits& limits, const std::function<Request&()>& make) {
  if (ticket.section_count > 0) return Planner(ticket, limits, make).run();
  // Without keys: every shard has counters and holds of its own; a list's cursor says whose turn it is; namespaces and
  // scopes are the store's, so one shard is told.
  const auto add = [&](uint32_t shard) {
    Request& request = make();
    request.shard = shard;
    request.shards = limits.shards;
    ticket.requests.push_back(&request);
  };
  if (ticket.operation == HS_OP_STAT || ticket.operation == HS_OP_RELEASE || ticket.operation == HS_OP_RENEW) {
    for (uint32_t shard = 0; shard < limits.shards; ++shard) add(shard);
  } else if (ticket.operation == HS_OP_LIST) {
    const uint32_t shard = list_shard(ticket.cursor, limits.shards);
    if (shard < limits.shards) {
      add(shard);
    } else {
      ticket.say_whole({wire::Answer::Rejected, wire::Reason::Malformed});  // no cursor of ours
    }
  } else if (ticket.operation == HS_OP_EXPLAIN) {
    wire::KeyQuestionView question;
    const Status parsed = wire::parse_key_question(ticket.question, &question);
    HALFSTEP_DCHECK(parsed.ok());  // or it would not have been submitted
    add(parsed.ok() ? wire::route(question.engine_key, limits.shards) : 0);
  } else {
    add(0);
  }
}

}  // namespace halfstep::peer
