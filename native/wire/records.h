// records.h — the values inside TLVs: fixed structures, each followed by what its comment says, and the views that parse them.
// Invariants: every count is checked against the bytes that are there before it is used; a view points into the body it was
// parsed from and dies with it; reserved fields are zero and checked.
#pragma once

#include <array>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "wire/features.h"
#include "wire/layout.h"
#include "wire/message.h"

namespace halfstep::wire {

// ---- Answers -------------------------------------------------------------------------------------------------------------

enum class Answer : uint8_t {
  Pending = 0,  // never on the wire: the receiver's initial value
  Ok = 1,
  Miss = 2,
  Late = 3,
  Cancelled = 4,
  Throttled = 5,
  Rejected = 6,
  Unavailable = 7,
};

enum class Reason : uint16_t {
  None = 0,
  // ok
  Stored = 1,
  Present = 2,
  // miss
  Absent = 16,
  Corrupt = 17,
  Collision = 18,
  Length = 19,
  Skipped = 20,
  Expired = 21,
  // throttled
  Pending = 32,
  Load = 33,
  Budget = 34,
  Full = 35,
  // rejected
  Checksum = 48,
  TooLarge = 49,
  Policy = 50,
  Unsupported = 51,
  WrongShard = 52,
  Malformed = 53,
  UnknownLayout = 54,
  UnknownNamespace = 55,
  Version = 56,
  Limit = 57,
  NotAuthenticated = 58,  // said by servers that know their clients; this one knows none
  Forbidden = 59,
  // unavailable
  Stopping = 64,
  Media = 65,
  Upstream = 66,  // said by a mount: the daemon behind it gave no answer
  // unavailable, said by the client's own core and never on the wire
  NoConnection = 80,
  OutcomeUnknown = 81,
  QueueFull = 82,
  Forked = 83,
  Closed = 84,
  Deadline = 85,
  ProtocolError = 86,
  Unresponsive = 87,
  NoDescriptors = 88,  // the process, or the system, is out of file descriptors (EMFILE, ENFILE) or threads
  Copy = 89,           // bytes could not be copied to or from the memory of a GPU
};

struct AnswerReason {
  Answer answer = Answer::Pending;
  Reason reason = Reason::None;
  bool operator==(const AnswerReason&) const noexcept = default;
};

// Section number of the status that is about a request as a whole (first 0, count 1). It holds for every item that no other
// status of the request names; a request without sections has no other.
inline constexpr uint16_t kWholeRequest = 0xFFFF;

// ---- Hello ---------------------------------------------------------------------------------------------------------------

struct HelloClient {
  uint16_t version_min = kVersion;
  uint16_t version_max = kVersion;
  uint32_t features = 0;   // none defined in version 1
  uint64_t codecs = 1;     // bit c: codec c is understood; bit 0 = raw
  uint64_t client_id = 0;  // random, the same on all connections of a client: fairness, counters
};
static_assert(sizeof(HelloClient) == 24);

struct HelloServer {
  uint16_t version = kVersion;
  uint16_t shards = 1;
  uint32_t features = 0;  // kFeature…
  uint64_t codecs = 1;
  std::array<std::byte, 16> store_uuid{};
  std::array<std::byte, 16> boot_id{};  // random at every start of the daemon
  uint32_t block_bytes_max = 0;
  uint32_t parts_max = kPartsMax;
  uint32_t keys_max = kKeysMax;
  uint32_t requests_in_flight_max = kRequestsInFlightMax;
  uint32_t chunk_bytes_max = kChunkBytesMax;
  uint32_t early_credit_bytes = kEarlyCreditBytes;
  uint32_t lease_ms_max = 0;
  uint32_t shard = 0;  // which one answers on this connection
};
static_assert(sizeof(HelloServer) == 80);
inline constexpr uint32_t kShardsMax = 16;

struct ShardAddress {  // ShardMap = ShardAddress[shards]
  uint16_t port = 0;   // 0: at the address this connection goes to
  uint16_t flags = 0;  // none defined; unknown ones are ignored
  uint16_t host = 0;   // 0: the one that the client reached; n: the n-th of ShardHosts
  uint16_t reserved = 0;
};
static_assert(sizeof(ShardAddress) == 8);
struct ShardHostsHead {  // ShardHosts = ShardHostsHead, then per host: u8 bytes (1-255), name or address (UTF-8), zeros to 8
  uint64_t epoch = 0;    // of the map beside it: of two maps of one store the higher one holds
  uint32_t host_count = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(ShardHostsHead) == 16);

// In a Hello: method, then what the method says. In its Final, exactly where the Hello had one: the method by which this server
// knows the client, alone.
struct AuthenticationHead {
  uint16_t method = 0;  // 0: none
  uint16_t reserved = 0;
  uint32_t reserved_word = 0;
};
static_assert(sizeof(AuthenticationHead) == 8);

// ---- Requests ------------------------------------------------------------------------------------------------------------

enum class Order : uint8_t { KeyMajor = 0, LayerMajor = 1 };
enum class Durability : uint8_t { Cache = 0, Persist = 1 };

struct Batch {
  uint32_t deadline_us = 0;  // relative, from the moment the header entered the socket; 0 = none
  uint8_t priority = 0;      // 0 = demand, larger = less urgent
  Order order = Order::KeyMajor;
  Durability durability = Durability::Cache;
  uint8_t flags = 0;        // kBatch…
  uint64_t hold_owner = 0;  // match: 0 = no hold
  uint32_t hold_ms = 0;     // > 0 exactly when there is an owner
  uint32_t reserved = 0;
};
static_assert(sizeof(Batch) == 24);
inline constexpr uint8_t kBatchLengths = 1;  // match: lengths are asked for too
inline constexpr uint8_t kBatchFollow = 2;   // prefetch: keys beyond the room for them wait until earlier ones were read
// match, get, put: a block with a codec that HelloClient::codecs lacks is not there; a put replaces it
inline constexpr uint8_t kBatchDecodable = 4;
// match, get: what is not there is waited for, until the deadline; only to a server that shows kFeatureWait
inline constexpr uint8_t kBatchWait = 8;
inline constexpr uint8_t kBatchFlags = kBatchLengths | kBatchFollow | kBatchDecodable | kBatchWait;

struct PartRange {  // parts start, start + stride, … (count of them)
  uint32_t start = 0;
  uint32_t count = 0;
  uint32_t stride = 1;
};
static_assert(sizeof(PartRange) == 12);

inline constexpr uint16_t kSectionStopAtMiss = 1;  // keys after the first miss are answered miss(skipped)
struct SectionHead {
  uint16_t layout = 0;  // handle of RegisterLayout on this connection
  uint16_t flags = 0;
  uint32_t first_component = 0;  // component_count cells from here, all of one group and variant
  uint16_t component_count = 1;
  uint16_t range_count = 0;  // 0 = all parts
  uint32_t key_count = 0;
  uint32_t keys_bytes = 0;
  uint32_t reserved = 0;
};  // then PartRange[range_count], then key_count times (u8 length 1-255, bytes), keys_bytes in all
static_assert(sizeof(SectionHead) == 24);

// Item i of a section = (key i / component_count, component first_component + i % component_count).
// For statuses of ranges: item * selected parts + ordinal of the part among the selected ones.

inline constexpr uint8_t kParentUnknown = 0, kParentRoot = 1, kParentInBatch = 2, kParentKnown = 3;
// kParentInBatch counts keys over the whole batch: section 0's keys from 0, then section 1's, and so on.
struct Offer {  // Offers = u16 section, u16 zero, u32 count (= items of the section), Offer[count]; follows its Section
  uint32_t block_bytes = 0;   // raw length = what a get returns
  uint32_t stored_bytes = 0;  // = block_bytes unless coded
  uint64_t parent = 0;        // last 8 bytes of the parent's engine key, or its ordinal (kParentInBatch)
  uint8_t parent_kind = kParentUnknown;
  uint8_t hint = 0;
  uint16_t depth = 0;
  uint32_t ttl_s = 0;  // 0 = the namespace's default
  uint32_t flags = 0;  // kOfferCoded: a PartTable for the item follows
  uint32_t reserved = 0;
};
static_assert(sizeof(Offer) == 32);
inline constexpr uint32_t kOfferCoded = 1;

// PartTable = u16 section, u16 zero, u32 item, u32 count, u32 zero, PartRecord[count]. In a put they follow the offers,
// ascending by (section, item), one for each coded offer; in a Chunk of a get one stands beside the first run of a coded item.
struct PartRecord {
  uint8_t codec = 0;
  uint8_t reserved[3] = {0, 0, 0};
  uint32_t stored_bytes = 0;
  uint32_t raw_bytes = 0;
  uint32_t raw_crc = 0;
};
static_assert(sizeof(PartRecord) == 16);

struct OwnerRecord {  // hold, renew; release: of the keys in the sections, or of all the owner's holds when there are none
  uint64_t owner = 0;
  uint32_t hint = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(OwnerRecord) == 16);

inline constexpr uint32_t kHoldPersistent = 1;
inline constexpr uint32_t kUntilKindMask = 0xFF00;  // prefetch_kind.h
struct UntilRecord {     // hold, renew: how long, from when the server reads it; prefetch: kept for its first read, once there
  uint64_t hold_ms = 0;  // 0 = without end: persistent holds alone
  uint32_t flags = 0;    // kHoldPersistent: in the namespace's pin budget, survives a restart; not in a renew
  uint32_t reserved = 0;
};
static_assert(sizeof(UntilRecord) == 16);

struct ExpiryRecord {  // expire
  uint32_t ttl_s = 0;  // from when the server reads it; 0 = never
  uint32_t reserved = 0;
};
static_assert(sizeof(ExpiryRecord) == 8);

struct CancelRecord {
  uint64_t request_id = 0;  // in flight on this connection
};
static_assert(sizeof(CancelRecord) == 8);

enum class NamespaceVerb : uint8_t { Create = 1, Limit = 2, Delete = 3 };
inline constexpr uint8_t kNamespaceSlidingTtl = 1;  // default_ttl_s counts from a block's last use
struct NamespaceRecord {  // with a NamespaceName TLV: the one acted upon; needs the connection's admin right
  NamespaceVerb verb = NamespaceVerb::Create;
  uint8_t flags = 0;
  uint8_t reserved[2] = {0, 0};
  uint32_t default_ttl_s = 0;
  uint64_t quota_bytes = 0;  // 0 = no limit but the store's
};
static_assert(sizeof(NamespaceRecord) == 16);
struct PinBudgetRecord {  // with an action; where it is absent: create 0, limit as it was
  uint64_t bytes = 0;     // of blocks with persistent holds; 0 = no such holds
};
static_assert(sizeof(PinBudgetRecord) == 8);

// NamespaceCoding in a Hello's Final, where either is not 0; SetCoding with an action. Where that is absent: create 0 and 0,
// limit as it was.
struct CodingRecord {
  uint16_t policy = 0;      // of clients that have none of their own: 0 none, else one of kPolicy…
  uint16_t step_limit = 0;  // the coarsest step of a lossy block, in 1/10,000; 0: any. No step is below 10: 1 is exact alone
  uint32_t reserved = 0;
};
static_assert(sizeof(CodingRecord) == 8);
inline constexpr uint16_t kPolicyExact = 1, kPolicyHigh = 2, kPolicyBalanced = 3, kPolicyCompact = 4, kPolicyOff = 5;

// KeyQuestion = KeyQuestionHead, ComponentRange[range_count], engine key: what does the server know of it?
struct KeyQuestionHead {
  uint32_t flags = 0;  // kQuestionEveryGroup
  uint16_t range_count = 0;
  uint8_t key_bytes = 0;
  uint8_t reserved = 0;
};
static_assert(sizeof(KeyQuestionHead) == 8);
struct ComponentRange {
  uint32_t first = 0;
  uint32_t count = 0;  // consecutive components, all of one group
};
static_assert(sizeof(ComponentRange) == 8);
inline constexpr uint32_t kQuestionEveryGroup = 1;  // the ranges are of group 0 and mean every group of each layout
inline constexpr uint32_t kQuestionRangesMax = 8;
inline constexpr uint32_t kQuestionComponentsMax = 4096;  // all ranges together

// ---- Within a request ----------------------------------------------------------------------------------------------------

inline constexpr uint16_t kRunAborted = 1;  // the bytes of this run are void (zero-filled): the sender had to stop
inline constexpr uint16_t kRunCoded = 2;
struct Run {
  // A run is whole parts (offset 0; part_count checks follow, also when it is aborted), or a piece of one part
  // (part_count 1; one check follows if it reaches the part's end, none otherwise).
  // Only an aborted run may have no bytes: it then says that the rest of what it names will not come.
  uint16_t section = 0;
  uint16_t flags = 0;
  uint32_t item = 0;
  uint32_t part = 0;         // first part
  uint32_t part_count = 1;   // consecutive parts of the block
  uint32_t offset = 0;       // within the first part
  uint32_t bytes = 0;        // payload bytes of this run
  uint32_t block_bytes = 0;  // of the block, so that the receiver can cut it
  uint32_t check_count = 0;
};
static_assert(sizeof(Run) == 32);
// Runs = u32 run_count, u32 check_count, Run[run_count], u32 check[check_count]. Checks lie in the order of the runs.
// The payload is the runs' bytes back to back: payload_bytes = sum of Run::bytes.

struct ItemRange {
  uint16_t section = 0;
  uint16_t reserved = 0;
  uint32_t first = 0;
  uint32_t count = 0;
};
static_assert(sizeof(ItemRange) == 12);
struct GrantHead {            // Grant = GrantHead, ItemRange[range_count]: the items whose slots are reserved; each adds its
  uint64_t credit_bytes = 0;  // stored_bytes to the request's credit. The first Want gives early credit back.
  uint32_t range_count = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(GrantHead) == 16);

struct StatusRun {  // Statuses = u16 section, u16 flags, u32 run_count, StatusRun[run_count]
  uint32_t first = 0;
  uint32_t count = 0;
  Answer answer = Answer::Pending;
  uint8_t reserved = 0;
  Reason reason = Reason::None;
};
static_assert(sizeof(StatusRun) == 12);
inline constexpr uint16_t kStatusPerPart = 1;  // first and count number selected parts, not items

// Lengths   = u16 section, u16 zero, u32 first, u32 count, u32 zero, u32 block_bytes[count]    (0 = not there)
// MatchBits = u16 section, u16 zero, u32 key_count, bytes: bit k % 8 of byte k / 8, all components of key k are there
// Reason    = UTF-8 text for people;  LayoutHandle = LayoutHandleRecord

struct LayoutHandleRecord {
  uint16_t handle = 0;
  uint16_t reserved[3] = {0, 0, 0};
  LayoutId id{};
};
static_assert(sizeof(LayoutHandleRecord) == 24);

struct LoadRecord {          // in every Final
  uint32_t queue_depth = 0;  // requests admitted and not finished on this shard
  uint32_t queue_us = 0;     // how long the next one would wait
  uint64_t bytes_per_s = 0;  // service rate of the last second that had work
};
static_assert(sizeof(LoadRecord) == 16);

struct CursorRecord {  // list and stat: request and answer; zero starts, an answer of zero ends
  uint64_t position = 0;
  uint32_t limit = 0;  // list: entries wanted at most; in the answer how many there are; stat: 0
  uint32_t reserved = 0;
};
static_assert(sizeof(CursorRecord) == 16);
struct EntryRecord {  // Entries = u32 count, u32 zero, then per entry EntryRecord, engine key, zero padding to 8
  LayoutId layout{};
  uint32_t component = 0;
  uint32_t block_bytes = 0;
  uint32_t parts = 0;
  uint32_t created_s = 0;
  uint32_t expiry_s = 0;  // 0 = never
  uint8_t key_bytes = 0;
  uint8_t flags = 0;
  uint16_t reserved = 0;
};
static_assert(sizeof(EntryRecord) == 40);

// Counters = repeated (u16 name_bytes, u16 zero, u32 zero, u64 value, name, zero padding to 8); names are metric names.

// ---- Views ---------------------------------------------------------------------------------------------------------------

// Fixed structures. Invalid: another size, reserved bytes or undefined flags set, numbers out of their range.
Status parse_hello_client(ConstBytes value, HelloClient* out) noexcept;
Status parse_hello_server(ConstBytes value, HelloServer* out) noexcept;
Status parse_batch(ConstBytes value, Batch* out) noexcept;
Status parse_owner(ConstBytes value, OwnerRecord* out) noexcept;
Status parse_until(ConstBytes value, UntilRecord* out) noexcept;
Status parse_expiry(ConstBytes value, ExpiryRecord* out) noexcept;
Status parse_layout_id(ConstBytes value, LayoutId* out) noexcept;
Status parse_pin_budget(ConstBytes value, PinBudgetRecord* out) noexcept;
// Policies that this build does not know are let through: they are none.
Status parse_coding(ConstBytes value, CodingRecord* out) noexcept;
Status parse_cancel(ConstBytes value, CancelRecord* out) noexcept;
Status parse_namespace_action(ConstBytes value, NamespaceRecord* out) noexcept;
Status parse_layout_handle(ConstBytes value, LayoutHandleRecord* out) noexcept;
Status parse_load(ConstBytes value, LoadRecord* out) noexcept;
Status parse_cursor(ConstBytes value, CursorRecord* out) noexcept;
// 1-255 bytes of UTF-8 without control characters.
Status parse_namespace_name(ConstBytes value, std::string_view* out) noexcept;

// An array of fixed structures inside a body, unaligned.
template <Plain T>
class PackedArray {
 public:
  PackedArray() = default;
  explicit PackedArray(ConstBytes bytes) noexcept : bytes_(bytes) {}
  uint32_t size() const noexcept { return static_cast<uint32_t>(bytes_.size() / sizeof(T)); }
  bool empty() const noexcept { return bytes_.empty(); }
  T operator[](uint32_t index) const noexcept { return load_le<T>(bytes_.data() + size_t{index} * sizeof(T)); }

 private:
  ConstBytes bytes_;
};

struct KeyQuestionView {
  KeyQuestionHead head;
  PackedArray<ComponentRange> ranges;
  ConstBytes engine_key;
};
// TooLarge: more ranges or components than a question may have.
Status parse_key_question(ConstBytes value, KeyQuestionView* out) noexcept;

Status parse_shard_map(ConstBytes value, PackedArray<ShardAddress>* out) noexcept;
struct ShardHostsView {
  uint64_t epoch = 0;
  uint32_t host_count = 0;
  std::array<std::string_view, kShardsMax> hosts;
};
Status parse_shard_hosts(ConstBytes value, ShardHostsView* out) noexcept;

struct GrantView {
  GrantHead head;
  PackedArray<ItemRange> ranges;
};
Status parse_grant(ConstBytes value, GrantView* out) noexcept;

struct LengthsView {
  uint16_t section = 0;
  uint32_t first = 0;
  PackedArray<uint32_t> block_bytes;
};
Status parse_lengths(ConstBytes value, LengthsView* out) noexcept;

struct MatchBitsView {
  uint16_t section = 0;
  uint32_t key_count = 0;
  ConstBytes bits;
  bool operator[](uint32_t key) const noexcept { return (std::to_integer<uint32_t>(bits[key / 8]) >> (key % 8) & 1U) != 0; }
};
// Bits past key_count are zero.
Status parse_match_bits(ConstBytes value, MatchBitsView* out) noexcept;

// One after the other; each checks the whole value first, so that nothing is visited of a malformed one.
Status check_entries(ConstBytes value, uint32_t* count) noexcept;
template <typename Visit>  // visit(const EntryRecord&, ConstBytes engine_key)
Status for_entries(ConstBytes value, Visit&& visit);
Status check_counters(ConstBytes value) noexcept;
template <typename Visit>  // visit(std::string_view name, uint64_t value)
Status for_counters(ConstBytes value, Visit&& visit);

// Walks packed keys that parse_request has found whole.
class KeyCursor {
 public:
  explicit KeyCursor(ConstBytes keys) noexcept : rest_(keys) {}
  bool next(ConstBytes* key) noexcept;

 private:
  ConstBytes rest_;
};

struct SectionView {
  SectionHead head;
  std::span<const std::byte> ranges;  // PartRange[range_count], unaligned
  ConstBytes keys;
  ConstBytes offers;   // Offer[items], unaligned; empty unless put
  ConstBytes choices;  // its CodingChoices, which have been parsed; empty: nobody says
  // get: where its bytes are to be placed, a Places or a PlaceRows that parses (places.h); empty: nowhere
  ConstBytes places;
  bool by_rows = false;
  uint32_t item_count() const noexcept { return head.key_count * head.component_count; }
  PartRange range(uint32_t index) const noexcept { return load_le<PartRange>(ranges.data() + index * sizeof(PartRange)); }
  Offer offer(uint32_t item) const noexcept { return load_le<Offer>(offers.data() + item * sizeof(Offer)); }
};

struct PartTableView {
  uint16_t section = 0;
  uint32_t item = 0;
  PackedArray<PartRecord> records;
};
// Sums come back too, for whoever knows what they must be; each fits u32, or the table is Invalid.
Status parse_part_table(ConstBytes value, PartTableView* out, uint32_t* stored_bytes, uint32_t* raw_bytes) noexcept;

// A request with batch and sections: match, get, put, prefetch, delete, touch, hold, renew, release, expire; Unsupported for
// the others. Checks: exactly one Batch; an Owner for hold, renew and release, Until for prefetch, hold and renew, Expiry for
// expire, and nowhere else; at least one section (release: or none; renew: none); no empty section; at most kSectionsMax,
// kKeysMax, kItemsMax (TooLarge); components of one group and variant; ranges only in a get, non-empty, stride > 0, below
// kPartsMax, at most kPartsMax parts in all; key bytes exact; stop-at-miss only in match and get; a hold and lengths only in
// match; Offers for every item of a put and nowhere else, and a PartTable for each coded one; CodingChoices behind them, or
// not; Places or PlaceRows only in a get or put, one a section and for all of its items, and one PlaceKeys. Unknown TLVs are
// skipped unless they must be understood (Unsupported); known ones that do not belong are Invalid.
struct RequestView {
  Batch batch;
  bool has_owner = false;
  OwnerRecord owner;
  bool has_until = false;
  UntilRecord until;
  bool has_expiry = false;
  ExpiryRecord expiry;
  uint32_t section_count = 0;
  std::array<SectionView, kSectionsMax> sections;
  std::vector<PartTableView> part_tables;  // reused by its owner
  ConstBytes place_keys;                   // PlaceKeys that parse (places.h); empty: regions have the connection's
};
Status parse_request(Opcode opcode, ConstBytes body, RequestView* out);

struct RunsView {
  uint32_t run_count = 0;
  uint32_t check_count = 0;
  ConstBytes runs;
  ConstBytes checks;
  Run run(uint32_t index) const noexcept { return load_le<Run>(runs.data() + index * sizeof(Run)); }
  uint32_t check(uint32_t index) const noexcept { return load_le<uint32_t>(checks.data() + index * sizeof(uint32_t)); }
};
// Checks counts, the rule for check_count of each run, and that the runs' bytes add up to payload_bytes.
Status parse_runs(ConstBytes value, uint32_t payload_bytes, RunsView* out) noexcept;
// The body of a Chunk: exactly one Runs, and PartTables, each of which is checked.
Status parse_chunk(ConstBytes body, uint32_t payload_bytes, RunsView* out) noexcept;

// Parts that a section selects of a block with `parts` parts, in the order of its ranges; Invalid when one lies outside.
// `visit(uint32_t part)`. All parts when there are no ranges.
template <typename Visit>
Status for_selected_parts(const SectionView& section, uint32_t parts, Visit&& visit) {
  if (section.head.range_count == 0) {
    for (uint32_t part = 0; part < parts; ++part) visit(part);
    return {};
  }
  for (uint32_t r = 0; r < section.head.range_count; ++r) {
    const PartRange range = section.range(r);
    if (uint64_t{range.start} + uint64_t{range.count - 1} * range.stride >= parts) return Code::Invalid;
    for (uint32_t i = 0; i < range.count; ++i) visit(range.start + i * range.stride);
  }
  return {};
}

// Invalid: reserved or undefined flags set, an empty run, Answer::Pending, a run that passes kItemsMax (per part: times
// kPartsMax), a section that is neither below kSectionsMax nor kWholeRequest. Answers and reasons that are unknown are not:
// they are misses.
Status check_statuses(ConstBytes value) noexcept;
// Walks Statuses of an answer: visit(section, flags, StatusRun). Nothing is visited of a malformed one.
template <typename Visit>
Status for_status_runs(ConstBytes value, Visit&& visit) {
  if (Status s = check_statuses(value); !s.ok()) return s;
  Reader reader(value);
  const auto section = reader.take<uint16_t>();
  const auto flags = reader.take<uint16_t>();
  const auto count = reader.take<uint32_t>();
  for (uint32_t i = 0; i < count; ++i) visit(section, flags, reader.take<StatusRun>());
  return {};
}

template <typename Visit>
Status for_entries(ConstBytes value, Visit&& visit) {
  uint32_t count = 0;
  if (Status s = check_entries(value, &count); !s.ok()) return s;
  Reader reader(value.subspan(2 * sizeof(uint32_t)));
  for (uint32_t i = 0; i < count; ++i) {
    const auto entry = reader.take<EntryRecord>();
    const ConstBytes key = reader.take_bytes(entry.key_bytes);
    reader.take_bytes((8 - entry.key_bytes % 8) % 8);
    visit(entry, key);
  }
  return {};
}

template <typename Visit>
Status for_counters(ConstBytes value, Visit&& visit) {
  if (Status s = check_counters(value); !s.ok()) return s;
  Reader reader(value);
  while (reader.left() > 0) {
    const auto name_bytes = reader.take<uint16_t>();
    reader.take_bytes(sizeof(uint16_t) + sizeof(uint32_t));
    const auto count = reader.take<uint64_t>();
    const ConstBytes name = reader.take_bytes(name_bytes);
    reader.take_bytes((8 - name_bytes % 8) % 8);
    visit(as_text(name), count);
  }
  return {};
}

// Run-length encodes statuses, item by item in ascending order, into a Statuses TLV.
class StatusWriter {
 public:
  StatusWriter(FrameWriter& frame, uint16_t section, uint16_t flags);
  void add(uint32_t number, AnswerReason status);
  void close();

 private:
  void flush();
  FrameWriter& frame_;
  size_t count_at_;
  uint32_t runs_ = 0;
  StatusRun open_;
};

}  // namespace halfstep::wire
