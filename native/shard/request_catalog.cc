#include "shard/request_catalog.h"

#include <algorithm>
#include <string>

#include "base/units.h"
#include "shard/client.h"
#include "shard/reply.h"
#include "shard/request_explain.h"
#include "shard/request_host.h"
#include "shard/tlvs.h"
#include "shard/unanswered.h"
#include "store/format/format.h"
#include "wire/records.h"

namespace halfstep::shard {

using wire::Answer;
using wire::AnswerReason;
using wire::Opcode;
using wire::Reason;
using wire::Tlv;

namespace {

// A page is small even when every key is as long as it may be: whoever lists asks again, and others have their turn between.
constexpr uint32_t kListPageBytes = 64 * KiB;
constexpr uint32_t kListEntriesMax = kListPageBytes / (sizeof(wire::EntryRecord) + 256);

// What a change of names takes until it is in the header, for each byte that describes it: a field of six bytes becomes two
// strings, here and in the store's list.
constexpr uint64_t kParsedBytesMax = 16;

// Of a Stat: so large a page, or one namespace more. One of the longest names takes 10 KiB.
constexpr size_t kStatPageBytes = 256 * KiB;

class CounterPage {
 public:
  explicit CounterPage(Writer& out) noexcept : out_(out), began_at_(out.size()) {}
  void add(const Sample& sample) {
    const std::string name = sample_name(sample);
    out_.put(static_cast<uint16_t>(name.size()));
    out_.put(uint16_t{0});
    out_.put(uint32_t{0});
    out_.put(static_cast<uint64_t>(std::max(0.0, sample.value)));  // a clock may be behind: the wire has no sign
    out_.put_bytes(as_bytes(name));
    for (size_t at = name.size(); at % 8 != 0; ++at) out_.put(uint8_t{0});
  }
  void add_all(const std::vector<Sample>& samples) {
    for (const Sample& sample : samples) add(sample);
  }
  bool full() const noexcept { return out_.size() - began_at_ >= kStatPageBytes; }

 private:
  Writer& out_;
  const size_t began_at_;
};

AnswerReason answer_of_command(Status status) noexcept {
  switch (status.code()) {
    case Code::Ok: return {Answer::Ok, Reason::None};
    case Code::Present: return {Answer::Ok, Reason::Present};
    case Code::NotFound: return {Answer::Rejected, Reason::UnknownNamespace};
    case Code::Invalid: return {Answer::Rejected, Reason::Malformed};
    case Code::TooLarge: return {Answer::Rejected, Reason::Limit};
    case Code::NoSpace: return {Answer::Rejected, Reason::Limit};
    case Code::Throttled: return {Answer::Throttled, Reason::Load};
    case Code::Unsupported: return {Answer::Rejected, Reason::Unsupported};
    case Code::IoError: return answer_of_io_error(status);
    default: return {Answer::Unavailable, Reason::None};
  }
}

// Why the store refused a layout or a namespace and what to do about it, for people.
std::string remedy_of(Opcode command, Status status) {
  const bool layout = command == Opcode::RegisterLayout;
  std::string out = command_name(command);
  switch (status.code()) {
    case Code::NotFound:
      if (command == Opcode::Clear) return out + ": the namespace has no such layout";
      return out + ": the namespace does not exist; its operator makes it";
    case Code::Invalid:
      return out + ": the store takes names of 1 to " + std::to_string(store::format::kNamespaceNameBytesMax) + " bytes";
    case Code::TooLarge:
    case Code::NoSpace:
      if (!layout) return out + ": the store's header is full; delete a namespace that is not used";
      return out + ": a namespace has at most " + std::to_string(store::format::kNamespaceLayoutsMax) + " layouts, " +
             std::to_string(store::format::kNamespaceLayoutBytesMax) +
             " bytes together, and the store's header holds those of all; use another namespace, or delete one that is not "
             "used";
    default: return {};
  }
}

}  // namespace

// ---- Calls of the store --------------------------------------------------------------------------------------------------

bool StoreCall::start(Client& client, Opcode opcode, uint64_t id, uint64_t bytes) {
  admit(client, opcode, id, 0, 0);
  retain();  // until done
  if (charge(kOwnBytes + bytes)) return true;
  finish();
  let_go();
  return false;
}

void StoreCall::end(AnswerReason with) {
  stop_listing();
  answer_whole(*client(), opcode(), id(), with);
  finish();
}

void StoreCall::done(Status status) {
  if (!finished()) {
    const bool no_layout = opcode() == Opcode::Clear && status == Code::NotFound;
    const AnswerReason answer = no_layout ? AnswerReason{Answer::Miss, Reason::Absent} : answer_of_command(status);
    answer_whole(*client(), opcode(), id(), answer, remedy_of(opcode(), status));
    finish();
  }
  let_go();
}

void StoreCall::layout_done(Status status, uint32_t scope, const wire::LayoutId& layout) {
  if (finished()) {
    let_go();
    return;
  }
  if (!status.ok() && status != Code::Present) {
    done(status);
    return;
  }
  auto& handles = client()->handles();
  const auto known = std::find_if(handles.begin(), handles.end(), [&](const auto& handle) { return handle.layout == layout; });
  wire::LayoutHandleRecord record;
  record.handle = static_cast<uint16_t>(known - handles.begin());
  record.id = layout;
  if (known == handles.end()) {
    handles.push_back({scope, layout});
  } else {
    known->scope = scope;
  }
  host().counts().answer(opcode(), {Answer::Ok, Reason::None});
  Reply reply(*client(), id());
  reply.whole({Answer::Ok, Reason::None});
  reply.frame().tlv(Tlv::LayoutHandle, record);
  reply.send();
  finish();
  let_go();
}

void StoreCall::list(uint64_t cursor, uint32_t limit) {
  entries_.clear();
  listing_.name_space = client()->name_space();
  listing_.cursor = cursor;
  listing_.limit = limit;
  listing_.owner = this;
  listing_.visit = [](store::Listing& listing, const store::Listed& listed) {
    Writer out(static_cast<StoreCall*>(listing.owner)->entries_);
    wire::EntryRecord entry;
    entry.layout = listed.layout;
    entry.component = listed.component.value;
    entry.block_bytes = listed.block_bytes;
    entry.parts = listed.parts;
    entry.created_s = static_cast<uint32_t>(listed.created_s);
    entry.expiry_s = static_cast<uint32_t>(listed.expiry_s);
    entry.key_bytes = static_cast<uint8_t>(listed.engine_key.size());
    out.put(entry);
    out.put_bytes(listed.engine_key);
    out.pad_to(sizeof(uint64_t));
  };
  listing_.done = [](store::Listing& listing) { static_cast<StoreCall*>(listing.owner)->list_done(); };
  host().store().list(listing_);
}

void StoreCall::list_done() {
  if (client() != nullptr) client()->charge(listing_.later_us);
  if (!finished()) {
    host().counts().answer(Opcode::List, {Answer::Ok, Reason::None});
    Reply reply(*client(), id());
    reply.whole({Answer::Ok, Reason::None});
    reply.frame().open_tlv(Tlv::Entries);
    Writer& out = reply.frame().value();
    out.put(listing_.listed);
    out.put(uint32_t{0});
    out.put_bytes(entries_);
    reply.frame().close_tlv();
    reply.frame().tlv(Tlv::Cursor, wire::CursorRecord{.position = listing_.next, .limit = listing_.listed});
    reply.send();
    finish();
  }
  let_go();
}

// Nobody reads on: the listing ends when its turn comes.
void StoreCall::stop_listing() noexcept {
  if (opcode() == Opcode::List) listing_.cursor = UINT64_MAX;
}

void StoreCall::recycle() {
  std::vector<std::byte>().swap(entries_);
  pool_.give(this);
}

// ---- Layouts and namespaces ----------------------------------------------------------------------------------------------

void register_layout(Client& client, Pool<StoreCall>& calls, uint64_t id, ConstBytes body) {
  const auto refuse = [&](Reason reason, const char* sentence) {
    answer_whole(client, Opcode::RegisterLayout, id, {Answer::Rejected, reason}, sentence);
  };
  TlvSlot slots[] = {{Tlv::LayoutCanonical}};
  if (!take_tlvs(client, Opcode::RegisterLayout, id, body, slots)) return;
  const ConstBytes canonical = slots[0].value;
  if (canonical.empty()) return refuse(Reason::Malformed, "register_layout: LayoutCanonical is missing");
  wire::Layout layout;
  if (const Status parsed = wire::Layout::parse(canonical, &layout); !parsed.ok()) {
    const bool large = parsed == Code::TooLarge;
    return refuse(large ? Reason::Limit : Reason::Malformed, large ? "register_layout: LayoutCanonical is over a limit"
                                                                   : "register_layout: LayoutCanonical is not canonical");
  }
  if (client.handles().size() >= Client::kHandlesMax) {
    return refuse(Reason::Limit, "register_layout: a connection registers at most 1024 layouts");
  }
  RequestHost& host = client.host();
  StoreCall* call = calls.take(calls);
  if (!call->start(client, Opcode::RegisterLayout, id, kParsedBytesMax * canonical.size())) return;
  host.store().register_layout(client.name_space(), layout, [call, layout_id = layout.id()](Status status, uint32_t scope) {
    call->layout_done(status, scope, layout_id);
  });
}

void clear_layout(Client& client, Pool<StoreCall>& calls, uint64_t id, ConstBytes body) {
  TlvSlot slots[] = {{Tlv::NamedLayout}};
  if (!take_tlvs(client, Opcode::Clear, id, body, slots)) return;
  wire::LayoutId layout;
  if (!wire::parse_layout_id(slots[0].value, &layout).ok()) {
    answer_whole(client, Opcode::Clear, id, {Answer::Rejected, Reason::Malformed},
                 "clear: NamedLayout is missing or malformed");
    return;
  }
  RequestHost& host = client.host();
  StoreCall* call = calls.take(calls);
  if (!call->start(client, Opcode::Clear, id, 0)) return;
  host.store().clear(client.name_space(), layout, [call](Status status) { call->done(status); });
}

// The namespace's own layouts alone: what others store is not its affair.
void answer_layout_of(Client& client, uint64_t id, ConstBytes body) {
  TlvSlot slots[] = {{Tlv::NamedLayout}};
  if (!take_tlvs(client, Opcode::LayoutOf, id, body, slots)) return;
  wire::LayoutId wanted;
  if (!wire::parse_layout_id(slots[0].value, &wanted).ok()) {
    answer_whole(client, Opcode::LayoutOf, id, {Answer::Rejected, Reason::Malformed},
                 "layout_of: NamedLayout is missing or malformed");
    return;
  }
  const store::Store& store = client.host().store();
  const wire::Layout* layout = store.layout_of(store.find_scope(client.name_space(), wanted));
  if (layout == nullptr) {
    answer_whole(client, Opcode::LayoutOf, id, {Answer::Miss, Reason::Absent}, "layout_of: the namespace has no such layout");
    return;
  }
  client.host().counts().answer(Opcode::LayoutOf, {Answer::Ok, Reason::None});
  Reply reply(client, id);
  reply.whole({Answer::Ok, Reason::None});
  reply.frame().tlv_bytes(Tlv::LayoutCanonical, layout->canonical());
  reply.send();
}

void change_namespace(Client& client, Pool<StoreCall>& calls, uint64_t id, ConstBytes body) {
  const auto refuse = [&](Reason reason, const char* sentence) {
    answer_whole(client, Opcode::Namespace, id, {Answer::Rejected, reason}, sentence);
  };
  // Until connections are authenticated, whoever is on this machine is its operator.
  if (!client.admin())
    return refuse(Reason::Forbidden,
                  "namespace: this connection has no admin right; use the loopback address or the unix socket");
  TlvSlot slots[] = {{Tlv::NamespaceName}, {Tlv::NamespaceAction}, {Tlv::PinBudget}, {Tlv::SetCoding}};
  if (!take_tlvs(client, Opcode::Namespace, id, body, slots)) return;
  std::string_view name;
  if (!wire::parse_namespace_name(slots[0].value, &name).ok()) {
    return refuse(Reason::Malformed, "namespace: NamespaceName is missing or malformed");
  }
  wire::NamespaceRecord record;
  if (!wire::parse_namespace_action(slots[1].value, &record).ok()) {
    return refuse(Reason::Malformed, "namespace: NamespaceAction is missing or malformed");
  }
  wire::PinBudgetRecord pins;
  if (slots[2].there && !wire::parse_pin_budget(slots[2].value, &pins).ok()) {
    return refuse(Reason::Malformed, "namespace: PinBudget is malformed");
  }
  wire::CodingRecord coding;
  if (slots[3].there && (!wire::parse_coding(slots[3].value, &coding).ok() || coding.policy > wire::kPolicyOff)) {
    return refuse(Reason::Malformed, "namespace: SetCoding is malformed, or of a policy that this server does not know");
  }
  if (record.verb == wire::NamespaceVerb::Delete && name == kNamespaceDefault) {
    return refuse(Reason::Policy, "namespace: \"default\" cannot be deleted: clients that name no namespace use it");
  }
  RequestHost& host = client.host();
  store::Store& store = host.store();
  StoreCall* call = calls.take(calls);
  if (!call->start(client, Opcode::Namespace, id, kParsedBytesMax * body.size())) return;
  const auto done = [call](Status status) { call->done(status); };
  if (record.verb == wire::NamespaceVerb::Delete) return store.delete_namespace(name, done);
  store::NamespaceInfo info{std::string(name),
                            record.quota_bytes,
                            record.default_ttl_s,
                            pins.bytes,
                            (record.flags & wire::kNamespaceSlidingTtl) != 0,
                            coding};
  if (record.verb == wire::NamespaceVerb::Create) return store.create_namespace(info, done);
  for (const store::NamespaceInfo& known : store.namespaces()) {
    if (known.name != name) continue;
    if (!slots[2].there) info.pin_budget_bytes = known.pin_budget_bytes;
    if (!slots[3].there) info.coding = known.coding;
  }
  store.limit_namespace(info, done);
}

// ---- list and stat -------------------------------------------------------------------------------------------------------

void answer_list(Client& client, Pool<StoreCall>& calls, uint64_t id, ConstBytes body) {
  TlvSlot slots[] = {{Tlv::Cursor}};
  if (!take_tlvs(client, Opcode::List, id, body, slots)) return;
  wire::CursorRecord cursor;
  if (!wire::parse_cursor(slots[0].value, &cursor).ok()) {
    answer_whole(client, Opcode::List, id, {Answer::Rejected, Reason::Malformed}, "list: Cursor is missing or malformed");
    return;
  }
  const uint32_t limit = cursor.limit == 0 ? kListEntriesMax : std::min(cursor.limit, kListEntriesMax);
  StoreCall* call = calls.take(calls);
  if (!call->start(client, Opcode::List, id, kListPageBytes)) return;
  call->list(cursor.position, limit);
}

// The first page has what is the shard's own, the others go on with the namespaces, by their numbers: those stay, whatever is
// made or deleted between two pages.
void answer_stat(Client& client, uint64_t id, ConstBytes body) {
  TlvSlot slots[] = {{Tlv::KeyQuestion}, {Tlv::Cursor}};
  if (!take_tlvs(client, Opcode::Stat, id, body, slots)) return;
  wire::CursorRecord cursor;
  const bool paged = slots[1].there;
  if (paged && (slots[0].there || !wire::parse_cursor(slots[1].value, &cursor).ok() || cursor.limit != 0)) {
    answer_whole(client, Opcode::Stat, id, {Answer::Rejected, Reason::Malformed},
                 "stat: Cursor: of 16 bytes, limit 0, and not beside a KeyQuestion");
    return;
  }
  if (slots[0].there) return answer_explain(client, id, slots[0].value);
  RequestHost& host = client.host();
  host.counts().answer(Opcode::Stat, {Answer::Ok, Reason::None});
  Reply reply(client, id);
  reply.whole({Answer::Ok, Reason::None});
  reply.frame().open_tlv(Tlv::Counters);
  CounterPage page(reply.frame().value());
  // Whose numbers these are, before them: a client has those of all shards.
  if (const wire::HelloServer& hello = host.hello(); hello.shards > 1) page.add({"halfstep_shard", {}, double(hello.shard)});
  if (cursor.position == 0) {
    Metrics own;
    host.collect_own(&own);
    for (const auto* samples : {&own.counters, &own.gauges}) page.add_all(*samples);
  }
  uint64_t next = 0;
  const std::vector<store::NamespaceStock> stocks = host.store().stocks();
  const std::vector<store::NamespaceInfo> namespaces = host.namespaces();
  host.coding_tally().keep(namespaces);
  for (const store::NamespaceInfo& info : namespaces) {
    if (info.number < cursor.position) continue;
    // A tenant sees its own account and nobody else's.
    if (!client.admin() && info.name != client.name_space()) continue;
    if (page.full()) {
      next = info.number;
      break;
    }
    Metrics of;
    collect_namespaces({info}, &of);
    const auto [first, end] = std::ranges::equal_range(stocks, info.number, {}, &store::NamespaceStock::number);
    collect_stocks({first, end}, &of);
    host.coding_tally().collect(info.name, &of);
    for (const auto* samples : {&of.counters, &of.gauges}) page.add_all(*samples);
  }
  reply.frame().close_tlv();
  reply.frame().tlv(Tlv::Cursor, wire::CursorRecord{.position = next});
  reply.send();
}

}  // namespace halfstep::shard
