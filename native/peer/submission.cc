#include "peer/submission.h"

#include <cstring>
#include <string>

#include "wire/prefetch_kind.h"

namespace halfstep::peer {
namespace {

// What a whole batch may ask at once, over all the requests it is cut into: the caller's own arrays are of this order.
constexpr uint64_t kBatchItemsMax = uint64_t{1} << 24;

constexpr uint32_t kStreamsMax = 64;
constexpr uint64_t kKeyUnitsMax = uint64_t{1} << 20;

std::string number(uint64_t value) { return std::to_string(value); }
Fault invalid(std::string what) { return {Code::Invalid, std::move(what)}; }

bool has_sections(uint32_t operation) noexcept {
  return operation == HS_OP_MATCH || operation == HS_OP_GET || operation == HS_OP_PUT || operation == HS_OP_DELETE ||
         operation == HS_OP_RELEASE || operation == HS_OP_TOUCH || operation == HS_OP_HOLD || operation == HS_OP_EXPIRE ||
         operation == HS_OP_PREFETCH;
}

bool names_namespace(uint32_t operation) noexcept {
  return operation == HS_OP_NAMESPACE_CREATE || operation == HS_OP_NAMESPACE_LIMIT || operation == HS_OP_NAMESPACE_DELETE;
}

class SectionFiller {
 public:
  SectionFiller(Client& client, const hs_batch& batch, const hs_section& from, Section& to, Ticket& ticket)
      : client_(client), batch_(batch), from_(from), to_(to), ticket_(ticket) {}

  Fault fill() {
    if (Fault fault = fill_names(); !fault.ok()) return fault;
    if (Fault fault = fill_keys(); !fault.ok()) return fault;
    to_.selection.set_all();
    to_.target.clear();
    to_.places.clear();
    to_.place_parts.clear();
    to_.offers.clear();
    to_.blocks.clear();
    to_.order.clear();
    to_.device = -1;
    if (from_.range_count > 0) {
      if (batch_.operation != HS_OP_GET) return invalid("range_count=" + number(from_.range_count) + ": only a get has ranges");
      if (from_.range_count > wire::kRangesMax) {
        return invalid("range_count=" + number(from_.range_count) + ": at most " + number(wire::kRangesMax));
      }
      if (from_.ranges == nullptr) return invalid("ranges: null, though range_count is not 0");
      if (Fault fault = to_.selection.set({from_.ranges, from_.range_count}, to_.shape); !fault.ok()) return fault;
    }
    if (batch_.operation == HS_OP_PUT) {
      if (Fault fault = fill_offers(); !fault.ok()) return fault;
    }
    if (batch_.operation == HS_OP_PUT || batch_.operation == HS_OP_GET) {
      hs_section section = from_;
      if (batch_.operation == HS_OP_GET) section.block_bytes = nullptr;
      to_.device = static_cast<int>(from_.cuda_device - 1);
      if (Fault fault = to_.target.set(section, to_.item_count, to_.shape, to_.selection); !fault.ok()) return fault;
      // What is put out of a GPU is summed in the host's memory first.
      if (to_.device < 0 || batch_.operation == HS_OP_GET) client_.place(to_, ticket_);
    }
    return {};
  }

 private:
  Fault fill_names() {
    to_.layout = client_.layout(from_.layout);
    if (to_.layout == nullptr) return invalid("layout=" + std::to_string(from_.layout) + ": no handle of this client");
    to_.layout_index = static_cast<uint32_t>(from_.layout);
    to_.coding = batch_.operation == HS_OP_PUT ? client_.coding(from_.layout) : nullptr;
    to_.lossy = nullptr;
    if (batch_.operation == HS_OP_GET && (client_.options().codecs & compress::kLossyCodecs) != 0) {
      if (const auto coding = client_.coding(from_.layout); coding != nullptr && coding->lossy()) to_.lossy = coding;
    }
    to_.first_component = from_.first_component;
    to_.component_count = from_.component_count == 0 ? 1 : from_.component_count;
    const wire::Component first{from_.first_component};
    if (first.group() >= to_.layout->groups().size()) {
      return invalid("first_component: group " + number(first.group()) + "; the layout has " +
                     number(to_.layout->groups().size()) + " groups");
    }
    const uint64_t cells = uint64_t{first.cell()} + to_.component_count;
    if (cells > uint64_t{1} << 20 || to_.component_count > wire::kItemsMax) {
      return invalid("component_count=" + number(from_.component_count) + " from cell " + number(first.cell()) + ": at most " +
                     number(wire::kItemsMax) + ", and cells end at 2^20");
    }
    to_.shape = to_.layout->groups()[first.group()];
    if ((from_.flags & ~HS_STOP_AT_MISS) != 0) return invalid("flags=" + number(from_.flags) + ": only HS_STOP_AT_MISS");
    to_.stop_at_miss = (from_.flags & HS_STOP_AT_MISS) != 0;
    if (to_.stop_at_miss && batch_.operation != HS_OP_MATCH && batch_.operation != HS_OP_GET) {
      return invalid("flags: HS_STOP_AT_MISS is for match and get");
    }
    return {};
  }

  Fault fill_keys() {
    if (from_.key_count == 0) return invalid("key_count=0: a section has at least one key");
    if (from_.keys == nullptr) return invalid("keys: null");
    const uint64_t items = uint64_t{from_.key_count} * to_.component_count;
    if (items > kBatchItemsMax) return invalid("a section of " + number(items) + " items: at most " + number(kBatchItemsMax));
    to_.key_count = from_.key_count;
    to_.item_count = static_cast<uint32_t>(items);
    const auto* keys = reinterpret_cast<const std::byte*>(from_.keys);
    to_.key_at.clear();
    to_.key_at.reserve(from_.key_count + size_t{1});
    uint64_t at = 0;
    for (uint32_t k = 0; k < from_.key_count; ++k) {
      to_.key_at.push_back(static_cast<uint32_t>(at));
      const uint64_t bytes = at < from_.keys_bytes ? std::to_integer<uint64_t>(keys[at]) : 0;
      if (bytes == 0 || at + 1 + bytes > from_.keys_bytes) {
        return invalid("keys: key " + number(k) + " of " + number(from_.key_count) +
                       " is empty or ends after keys_bytes=" + number(from_.keys_bytes));
      }
      at += 1 + bytes;
    }
    if (at != from_.keys_bytes) {
      return invalid("keys_bytes=" + number(from_.keys_bytes) + ": " + number(from_.key_count) + " keys end at " + number(at));
    }
    to_.key_at.push_back(static_cast<uint32_t>(at));
    to_.keys.assign(keys, keys + at);
    return {};
  }

  Fault fill_offers() {
    if (from_.block_bytes == nullptr) return invalid("block_bytes: null; a put says every item's length");
    to_.offers.resize(to_.item_count);
    for (uint32_t i = 0; i < to_.item_count; ++i) {
      wire::Offer& offer = to_.offers[i];
      offer = {};
      offer.block_bytes = offer.stored_bytes = from_.block_bytes[i];
      offer.hint = from_.hint;
      offer.ttl_s = from_.ttl_s;
      if (from_.depths != nullptr) offer.depth = from_.depths[i];
      if (to_.shape.parts_of(offer.block_bytes) == 0) {
        return invalid("block_bytes=" + number(offer.block_bytes) + " of item " + number(i) +
                       ": no block of its group has that length; " +
                       (to_.shape.part_count != 0 ? "all have " + number(to_.shape.offset_of(to_.shape.part_count))
                                                  : "it has 1 byte or more, in at most " + number(wire::kPartsMax) + " parts"));
      }
      const uint64_t parent = from_.parents == nullptr ? HS_PARENT_UNKNOWN : from_.parents[i];
      if (parent == HS_PARENT_ROOT) {
        offer.parent_kind = wire::kParentRoot;
      } else if (parent != HS_PARENT_UNKNOWN) {
        if (parent >= to_.key_count) {
          return invalid("parents: " + number(parent) + " of item " + number(i) + "; the section has " + number(to_.key_count) +
                         " keys");
        }
        offer.parent_kind = wire::kParentInBatch;
        offer.parent = parent;
      }
    }
    return {};
  }

  Client& client_;
  const hs_batch& batch_;
  const hs_section& from_;
  Section& to_;
  Ticket& ticket_;
};

Fault fill_sections(Client& client, const hs_batch& batch, Ticket& ticket) {
  if (batch.section_count > 0 && batch.sections == nullptr) return invalid("sections: null, though section_count is not 0");
  if (batch.section_count == 0 && batch.operation != HS_OP_RELEASE) {
    return invalid("section_count=0: match, get, put, prefetch, delete, touch, hold and expire need at least one");
  }
  if (batch.section_count > wire::kSectionsMax) {
    return invalid("section_count=" + number(batch.section_count) + ": at most " + number(wire::kSectionsMax));
  }
  if (ticket.sections.size() < batch.section_count) ticket.sections.resize(batch.section_count);
  ticket.section_count = batch.section_count;
  uint64_t items = 0;
  uint64_t units = 0;
  for (uint32_t s = 0; s < batch.section_count; ++s) {
    const hs_section& from = batch.sections[s];
    Section& to = ticket.sections[s];
    if (Fault fault = SectionFiller(client, batch, from, to, ticket).fill(); !fault.ok()) {
      return {fault.status, "section " + number(s) + ": " + fault.what};
    }
    to.answers = from.answers;
    to.lengths = from.lengths;
    to.error_bounds = from.error_bounds;
    to.unchecked = from.unchecked;
    items += to.item_count;
    units += uint64_t{to.item_count} * (to.selection.all() ? 1 : to.selection.count(0));
  }
  // One key must fit into a request: batches are cut between keys.
  for (uint32_t s = 0; s < batch.section_count; ++s) {
    const Section& section = ticket.sections[s];
    const uint64_t key_units = uint64_t{section.component_count} * (section.selection.all() ? 1 : section.selection.count(0));
    if (key_units > kKeyUnitsMax) {
      return invalid("section " + number(s) + ": " + number(key_units) + " parts of one key; at most " + number(kKeyUnitsMax));
    }
  }
  if (items > kBatchItemsMax || units > kBatchItemsMax) {
    return invalid("a batch of " + number(items) + " items and " + number(units) + " answers: at most " +
                   number(kBatchItemsMax));
  }
  return {};
}

// Where sections are on a device: that is there, and what its caller's streams have under way is known.
Fault prepare_device(Client& client, const hs_batch& batch, Ticket& ticket) {
  for (uint32_t s = 0; s < ticket.section_count; ++s) {
    const Section& section = ticket.sections[s];
    if (section.device < 0) continue;
    if (ticket.device >= 0 && ticket.device != section.device) {
      return invalid("section " + number(s) + ": memory of cuda:" + number(section.device) +
                     " in a batch with memory of cuda:" + number(ticket.device) + "; make a batch for each device");
    }
    ticket.device = section.device;
    for (const wire::Offer& offer : section.offers) ticket.staging.bytes_all += offer.block_bytes;
  }
  if (ticket.device < 0) return {};
  const uint64_t bytes_max = client.devices().put_bytes_max();
  if (ticket.staging.bytes_all > bytes_max) {
    return {Code::TooLarge, "a put of " + number(ticket.staging.bytes_all) + " bytes of GPU memory: at most " +
                                number(bytes_max) + ", the pinned memory for it; split the batch"};
  }
  std::shared_ptr<gpu::Device> device;
  if (Fault fault = client.devices().open(ticket.device, ticket.staging.bytes_all, &device); !fault.ok()) return fault;
  for (uint32_t s = 0; s < ticket.section_count; ++s) {
    const Section& section = ticket.sections[s];
    const void* first = section.device < 0 ? nullptr : section.target.first_address();
    if (first == nullptr) continue;
    if (Fault fault = device->check(reinterpret_cast<gpu::DevicePointer>(first)); !fault.ok()) {
      return {fault.status, "section " + number(s) + ": " + fault.what};
    }
  }
  if (batch.stream_count > kStreamsMax || (batch.stream_count > 0 && batch.streams == nullptr)) {
    return invalid("stream_count=" + number(batch.stream_count) + ": at most " + number(kStreamsMax) + ", with streams");
  }
  for (uint32_t i = 0; i < batch.stream_count; ++i) {
    std::unique_ptr<gpu::Gate> gate;
    if (Fault fault = gpu::Gate::make(device, batch.streams[i], &gate); !fault.ok()) {
      ticket.gates.clear();
      return fault;
    }
    ticket.gates.push_back(std::move(gate));
  }
  return {};
}

// The number in every check of an item's parts.
void name_items(Ticket& ticket) {
  for (uint32_t s = 0; s < ticket.section_count; ++s) {
    const Section& section = ticket.sections[s];
    for (uint32_t i = 0; i < section.item_count; ++i) {
      const wire::Component component{section.first_component + i % section.component_count};
      ticket.item(section, i).name_number =
          wire::name_number(section.layout->id(), component, section.engine_key(i / section.component_count));
    }
  }
}

Fault check_batch(const hs_batch& batch) {
  if (batch.struct_bytes != sizeof(hs_batch)) {
    return invalid("struct_bytes=" + number(batch.struct_bytes) + ": this library's hs_batch has " + number(sizeof(hs_batch)));
  }
  if (batch.operation < HS_OP_MATCH || batch.operation > HS_OP_PREFETCH) {
    return invalid("operation=" + number(batch.operation) + ": no hs_operation");
  }
  if (batch.order > HS_LAYER_MAJOR) return invalid("order=" + number(batch.order) + ": no hs_order");
  if (batch.durability > HS_PERSIST) return invalid("durability=" + number(batch.durability) + ": no hs_durability");
  const bool match = batch.operation == HS_OP_MATCH;
  if (match && (batch.hold_owner != 0) != (batch.hold_ms != 0)) {
    return invalid("hold_owner, hold_ms: a hold has both, or neither");
  }
  const bool holds = batch.operation == HS_OP_HOLD || batch.operation == HS_OP_RENEW;
  if ((holds || batch.operation == HS_OP_RELEASE) && batch.hold_owner == 0) {
    return invalid("hold_owner=0: hold, renew and release name their owner");
  }
  if (batch.persistent > 1 || (batch.persistent == 1 && batch.operation != HS_OP_HOLD)) {
    return invalid("persistent=" + number(batch.persistent) + ": 0, or 1 in a hold");
  }
  if (holds && batch.value == 0 && batch.persistent == 0) {
    return invalid("value=0: a hold without an end must be persistent, and a renew names a time");
  }
  if (batch.operation == HS_OP_PREFETCH && batch.value == 0) {
    return invalid("value=0: a prefetch says for how many milliseconds a block is kept for its first get");
  }
  if (batch.follow > 1 || (batch.follow == 1 && batch.operation != HS_OP_PREFETCH)) {
    return invalid("follow=" + number(batch.follow) + ": 0, or 1 in a prefetch");
  }
  if (batch.prefetch_kind >= wire::kPrefetchKinds || (batch.prefetch_kind != 0 && batch.operation != HS_OP_PREFETCH)) {
    return invalid("prefetch_kind=" + number(batch.prefetch_kind) + ": 0, or 1 to 4 in a prefetch");
  }
  if (batch.wait > 1 || (batch.wait == 1 && !match && batch.operation != HS_OP_GET)) {
    return invalid("wait=" + number(batch.wait) + ": 0, or 1 in a match or get");
  }
  if (batch.operation == HS_OP_EXPIRE && batch.value > UINT32_MAX) {
    return invalid("value=" + number(batch.value) + ": an expiry is at most 2^32 - 1 seconds away");
  }
  if (batch.operation == HS_OP_CLEAR && batch.layout_id == nullptr) return invalid("layout_id: null");
  if (batch.operation == HS_OP_EXPLAIN) {
    wire::KeyQuestionView question;
    const auto* bytes = reinterpret_cast<const std::byte*>(batch.question);
    if (batch.question == nullptr || !wire::parse_key_question({bytes, batch.question_bytes}, &question).ok()) {
      return invalid("question: " + number(batch.question_bytes) + " bytes are no KeyQuestion");
    }
  }
  if (names_namespace(batch.operation)) {
    const size_t bytes = batch.text == nullptr ? 0 : std::strlen(batch.text);
    if (bytes == 0 || bytes > wire::kNamespaceBytesMax) {
      return invalid("text: a namespace's name has 1 to " + number(wire::kNamespaceBytesMax) + " bytes");
    }
  }
  return {};
}

}  // namespace

Fault fill_ticket(Client& client, const hs_batch& batch, Ticket& ticket) {
  const uint64_t now_us = client.now_us();
  if (Fault fault = check_batch(batch); !fault.ok()) return fault;
  const bool match = batch.operation == HS_OP_MATCH;
  const uint32_t deadline_us =
      batch.deadline_us != 0 ? batch.deadline_us : (match ? kDefaultMatchDeadlineUs : kDefaultDeadlineUs);
  ticket.operation = batch.operation;
  ticket.deadline_us = now_us + deadline_us;
  ticket.batch.priority = batch.priority;
  ticket.batch.order = static_cast<wire::Order>(batch.order);
  ticket.batch.durability = static_cast<wire::Durability>(batch.durability);
  if (match) {
    ticket.batch.flags = batch.wants_lengths != 0 ? wire::kBatchLengths : 0;
    ticket.batch.hold_owner = batch.hold_owner;
    ticket.batch.hold_ms = batch.hold_ms;
  }
  if (batch.follow != 0) ticket.batch.flags = wire::kBatchFollow;
  if (batch.wait != 0) ticket.batch.flags |= wire::kBatchWait;
  ticket.wants_progress = batch.wants_progress != 0;
  ticket.user_data = batch.user_data;
  ticket.owner = batch.hold_owner;
  ticket.cursor = batch.cursor;
  ticket.cursor_out = batch.cursor_out;
  ticket.limit = batch.limit;
  if (batch.text != nullptr) ticket.text = batch.text;
  ticket.value = batch.value;
  ticket.prefetch_kind = static_cast<uint8_t>(batch.prefetch_kind);
  ticket.pin_budget_bytes = batch.pin_budget_bytes;
  ticket.default_ttl_s = batch.default_ttl_s;
  ticket.sliding_ttl = batch.sliding_ttl != 0;
  ticket.sets_coding = batch.sets_coding != 0;
  ticket.coding = {.policy = batch.policy, .step_limit = batch.step_limit};
  ticket.persistent = batch.persistent != 0;
  if (batch.layout_id != nullptr) std::memcpy(ticket.layout_id.data(), batch.layout_id, ticket.layout_id.size());
  if (batch.operation == HS_OP_EXPLAIN) {
    const auto* bytes = reinterpret_cast<const std::byte*>(batch.question);
    ticket.question.assign(bytes, bytes + batch.question_bytes);
  }
  ticket.sink = batch.sink;
  ticket.sink_context = batch.sink_context;
  ticket.outcome = batch.outcome;
  if (has_sections(batch.operation)) {
    if (Fault fault = fill_sections(client, batch, ticket); !fault.ok()) return fault;
  }
  ticket.prepare();
  // Last: events of streams are not made in vain.
  if (!ticket.is_get() && !ticket.is_put()) return {};
  name_items(ticket);
  if (Fault fault = prepare_device(client, batch, ticket); !fault.ok()) return fault;
  return {};
}

}  // namespace halfstep::peer
