// format.h — version 1 of what is on flash. Everything is little-endian and copied as it lies (base/bytes.h asserts the host).
// docs/on-flash-format.md says the same in words, with the order of durability and the rules of recovery.
//
// Device (offsets: geometry.h)
//   0        +----------------------+
//            | store header, copy A |  1 MiB
//            | record logs, copy A  |  per shard: half 0, half 1
//            | touch maps           |  per segment: kTouchesPerPage marks a page
//            +----------------------+  multiple of 1 MiB
//            | segment 0            |
//            | …                    |
//            +----------------------+
//            | record logs, copy B  |
//   end-1MiB | store header, copy B |
//            +----------------------+
//
// Segment
//   page 0   | frame 0 | frame 1 | …                     unused                     … | footer | footer tail |
//
// Frame                                                   Footer
//   | FrameEntries pages: 31 entries each     |             | FooterEntries pages: every entry of the segment again |
//   | FrameTable pages: long keys, part sums  |             | FooterKeys pages: the keys longer than 32 bytes       |
//   | extent | extent | …   (whole pages)     |             | FooterTail: last page of the segment, says where      |
//
// Extent, plain:   | part 0 | part 1 | … |                               all raw, whole pages, nothing else
// Extent, other:   | part 0 | part 1 | … | zeros | TrailerPart[parts] | TrailerTail |    ends with its last page
//
// Metadata page:   | PageHeader 128 B | 31 x Entry 128 B, or 62 x Record 64 B, or 3,968 B of table |
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

#include "base/hash.h"
#include "base/units.h"
#include "wire/layout.h"

namespace halfstep::store::format {

inline constexpr uint16_t kVersion = 1;

// Sequences, generations, epochs and births stay below: what says more was not drawn by any store.
inline constexpr uint64_t kSequenceLimit = uint64_t{1} << 63;

// ---- Metadata pages --------------------------------------------------------------------------------------------------------

enum class PageKind : uint8_t {
  FrameEntries = 1,
  FrameTable = 2,
  FooterEntries = 3,
  FooterKeys = 4,
  FooterTail = 5,
  RecordLog = 6,
  TouchMap = 7,
};

inline constexpr uint32_t kPageMagic = 0x31474850;  // "PHG1"
inline constexpr uint8_t kPageSnapshot = 1;         // flag of a record page: written by a compaction, before page 0 of its half

struct PageHeader {
  uint64_t mac = 0;  // low 64 bits of keyed_hash(secret.last, the page from byte 8 on)
  uint32_t magic = kPageMagic;
  uint16_t version = kVersion;
  uint8_t kind = 0;
  uint8_t flags = 0;
  uint64_t generation = 0;  // of the segment; for a record page the epoch of its half
  uint64_t sequence = 0;    // per shard, drawn when the page was submitted
  uint64_t created_s = 0;   // store time
  uint32_t device = 0;
  uint32_t shard = 0;
  uint32_t segment = 0;        // for a record page its half, 0 or 1
  uint32_t place = 0;          // page number within the segment, the half or the map: a misdirected page is noticed
  uint32_t frame = 0;          // number of the frame in its segment; of a record page the place where its batch began; of a
                               // page of the touch map the time, as stamps count it
  uint32_t page = 0;           // number of this page among the frame's header pages, the footer's, the snapshot's, the map's
  uint32_t page_count = 0;     // of those pages
  uint32_t entries = 0;        // entries or records in this page; bytes in a FrameTable; keys in FooterKeys
  uint32_t first_entry = 0;    // ordinal in the segment of the first one
  uint32_t frame_pages = 0;    // pages of the whole frame; in a FooterTail the pages that frames take
  uint32_t watermark = 0;      // pages of this segment that were known to be on media
  uint32_t total_entries = 0;  // FooterTail: entries of the segment; frame pages: entries of the frame
  uint8_t stream = 0;
  uint8_t ttl_class = 0;
  uint16_t reserved0 = 0;
  uint32_t reserved1[8] = {};
};
static_assert(sizeof(PageHeader) == 128);
static_assert(offsetof(PageHeader, magic) == 8 && offsetof(PageHeader, kind) == 14 && offsetof(PageHeader, generation) == 16);
static_assert(offsetof(PageHeader, sequence) == 24 && offsetof(PageHeader, created_s) == 32);
static_assert(offsetof(PageHeader, device) == 40 && offsetof(PageHeader, place) == 52 && offsetof(PageHeader, frame) == 56);
static_assert(offsetof(PageHeader, page) == 60 && offsetof(PageHeader, entries) == 68 && offsetof(PageHeader, watermark) == 80);
static_assert(offsetof(PageHeader, total_entries) == 84 && offsetof(PageHeader, stream) == 88);

inline constexpr uint32_t kPageBodyBytes = kPageBytes - sizeof(PageHeader);

// ---- Entries ---------------------------------------------------------------------------------------------------------------

inline constexpr uint8_t kEntryTrailer = 1;      // the extent ends with a trailer
inline constexpr uint8_t kEntryParentShift = 1;  // two bits: unknown, root, known
inline constexpr uint8_t kEntryParentMask = 3U << kEntryParentShift;
inline constexpr uint8_t kEntryVoid = 8;      // footers: the block was gone when the segment was sealed
inline constexpr uint8_t kEntrySliding = 16;  // its end moves on with every use, by its namespace's default TTL
inline constexpr uint8_t kEntryFlags = kEntryTrailer | kEntryParentMask | kEntryVoid | kEntrySliding;

inline constexpr uint32_t kEngineKeyBytesMax = 255;
inline constexpr uint32_t kEngineKeyInline = 32;

struct Entry {
  uint64_t key_low = 0;  // index key
  uint64_t key_high = 0;
  std::array<std::byte, kEngineKeyInline> engine_key{};  // zero-padded; SHA-256 of a longer one
  uint64_t birth = 0;                                    // per-shard sequence; kept when a block is rewritten
  uint64_t parent = 0;                                   // last 8 bytes of the parent's engine key
  uint32_t stored_bytes = 0;                             // of the parts, without padding and trailer
  uint32_t raw_bytes = 0;
  uint32_t page = 0;      // within the segment: first page of the extent
  uint32_t checksum = 0;  // CRC32C of the whole extent
  uint32_t scope = 0;
  uint32_t component = 0;
  uint32_t depth = 0;
  uint32_t expiry_s = 0;  // store time; 0 = never
  uint32_t created_s = 0;
  uint16_t parts = 0;
  uint16_t table_offset = 0;  // in 8-byte units, in the frame's tables laid end to end: long key, then 4 B a part if plain
  uint16_t pages_back = 0;    // from `page` to the first page of the frame
  uint8_t engine_key_bytes = 0;
  uint8_t flags = 0;
  uint8_t hint = 0;
  uint8_t key_epoch = 0;  // encryption; 0 = none
  uint8_t reserved[2] = {};
  uint64_t codecs = 0;  // bit c: a part has codec c; 0 = all of it is raw
  uint64_t reserved1 = 0;
};
static_assert(sizeof(Entry) == 128);
static_assert(offsetof(Entry, key_low) == 0 && offsetof(Entry, engine_key) == 16 && offsetof(Entry, birth) == 48);
static_assert(offsetof(Entry, parent) == 56 && offsetof(Entry, stored_bytes) == 64 && offsetof(Entry, raw_bytes) == 68);
static_assert(offsetof(Entry, page) == 72 && offsetof(Entry, checksum) == 76 && offsetof(Entry, scope) == 80);
static_assert(offsetof(Entry, component) == 84 && offsetof(Entry, depth) == 88 && offsetof(Entry, expiry_s) == 92);
static_assert(offsetof(Entry, created_s) == 96 && offsetof(Entry, parts) == 100 && offsetof(Entry, table_offset) == 102);
static_assert(offsetof(Entry, pages_back) == 104 && offsetof(Entry, engine_key_bytes) == 106 && offsetof(Entry, flags) == 107);
static_assert(offsetof(Entry, hint) == 108 && offsetof(Entry, key_epoch) == 109 && offsetof(Entry, reserved) == 110);
static_assert(offsetof(Entry, codecs) == 112);

inline constexpr uint32_t kEntriesPerPage = kPageBodyBytes / sizeof(Entry);
static_assert(kEntriesPerPage == 31 && kEntriesPerPage * sizeof(Entry) == kPageBodyBytes);

// ---- Frames ----------------------------------------------------------------------------------------------------------------

inline constexpr uint32_t kFrameHeaderPagesMax = 128 * KiB / kPageBytes;
inline constexpr uint32_t kPagesBackMax = 1023;  // 10 bits of an index entry (index/entry.h)
inline constexpr uint32_t kTableUnit = 8;
static_assert(kFrameHeaderPagesMax <= kPagesBackMax);
static_assert(uint64_t{kFrameHeaderPagesMax} * kPageBodyBytes / kTableUnit <= UINT16_MAX, "a table offset has 16 bits");

// FooterKeys: keys back to back, none straddles a page.
struct FooterKey {
  uint32_t ordinal = 0;  // of the entry in the segment
  uint8_t bytes = 0;     // then the key
  uint8_t reserved[3] = {};
};
static_assert(sizeof(FooterKey) == 8);

// ---- Extents ---------------------------------------------------------------------------------------------------------------

struct TrailerPart {
  uint8_t codec = 0;  // 0 = raw
  uint8_t reserved[3] = {};
  uint32_t stored_bytes = 0;
  uint32_t raw_bytes = 0;
  uint32_t stored_crc = 0;
  uint32_t raw_crc = 0;
  uint32_t reserved1 = 0;
};
static_assert(sizeof(TrailerPart) == 24);
static_assert(offsetof(TrailerPart, stored_bytes) == 4 && offsetof(TrailerPart, raw_crc) == 16);

inline constexpr uint32_t kTrailerMagic = 0x31545348;  // "HST1"
struct TrailerTail {
  uint32_t parts = 0;
  uint32_t stored_bytes = 0;
  uint32_t raw_bytes = 0;
  uint32_t flags = 0;  // none in version 1
  uint32_t reserved[3] = {};
  uint32_t magic = kTrailerMagic;
};
static_assert(sizeof(TrailerTail) == 32 && offsetof(TrailerTail, magic) == 28);

static_assert(wire::kPartsMax <= UINT16_MAX && wire::kPartsMax == 2560);
static_assert(wire::kPartsMax * sizeof(uint32_t) + kEngineKeyBytesMax + kTableUnit <=
                  (kFrameHeaderPagesMax - 1) * kPageBodyBytes,
              "any one block's entry and tables fit a frame header");

constexpr uint64_t trailer_bytes(uint32_t parts) noexcept {
  return uint64_t{parts} * sizeof(TrailerPart) + sizeof(TrailerTail);
}

// ---- Segments --------------------------------------------------------------------------------------------------------------

inline constexpr uint64_t kSegmentBytesMin = 2 * MiB;
inline constexpr uint64_t kSegmentBytesMax = 16 * GiB;
inline constexpr uint64_t kSegmentBytesDefault = 1 * GiB;
inline constexpr uint32_t kSegmentsPerShardMin = 64;
inline constexpr uint32_t kShardsMax = 16;
inline constexpr uint64_t kBlockSlackBytes = 256 * KiB;  // frame header and trailer of the largest block
static_assert(wire::kBlockBytesMax == 256 * MiB - kBlockSlackBytes);
static_assert(kFrameHeaderPagesMax * kPageBytes + trailer_bytes(wire::kPartsMax) + kPageBytes <= kBlockSlackBytes,
              "the largest block, its trailer and its frame header take at most a quarter of a segment");

// Extents count their pages minus one in 16 bits of an index entry.
static_assert((wire::kBlockBytesMax + trailer_bytes(wire::kPartsMax)) / kPageBytes <= 65536);

// ---- Record log ------------------------------------------------------------------------------------------------------------

enum class RecordKind : uint8_t {
  Tombstone = 1,   // key: births below `sequence` are gone
  Hold = 2,        // key, owner, value = until (kHoldReleased: it ends here, kHoldNoEnd); births below `sequence` are held
  Expiry = 3,      // key, value = expiry, 0 = never: that of births below `sequence` from now on
  Segment = 4,     // segment: `sequence` is its generation from now on; value = how often it was logged bad before
  SegmentBad = 5,  // segment: holds nothing and is out of use; value = how often it was logged bad, this time included
};
inline constexpr uint8_t kRecordMustUnderstand = 0x80;  // of the kind
inline constexpr uint8_t kHoldAllKeys = 1;              // flag of a Hold: ends all of the owner's with a lower sequence
inline constexpr uint64_t kHoldReleased = 0;
inline constexpr uint64_t kHoldNoEnd = UINT64_MAX;

struct Record {
  uint8_t kind = 0;
  uint8_t flags = 0;
  uint16_t reserved0 = 0;
  uint32_t segment = 0;
  uint64_t sequence = 0;
  uint64_t key_low = 0;
  uint64_t key_high = 0;
  uint64_t owner = 0;
  uint64_t value = 0;
  uint64_t reserved1[2] = {};
};
static_assert(sizeof(Record) == 64);
static_assert(offsetof(Record, segment) == 4 && offsetof(Record, sequence) == 8 && offsetof(Record, key_low) == 16);
static_assert(offsetof(Record, owner) == 32 && offsetof(Record, value) == 40);

inline constexpr uint32_t kRecordsPerPage = kPageBodyBytes / sizeof(Record);
static_assert(kRecordsPerPage == 62 && kRecordsPerPage * sizeof(Record) == kPageBodyBytes);
inline constexpr uint32_t kRecordBatchPagesMax = 64;

// ---- Touch map -------------------------------------------------------------------------------------------------------------

// By ordinal: stamp 16 bits, class 2 bits, 6 reserved. A stamp counts 1/1024 of the capacity, written to the log.
inline constexpr uint32_t kTouchBytes = 3;
inline constexpr unsigned kTouchLifeShift = 2;  // the third byte: class, then what is left of a sliding life
inline constexpr uint32_t kTouchLifeMax = 63;
inline constexpr uint32_t kTouchesPerPage = kPageBodyBytes / kTouchBytes;

// ---- Store header ----------------------------------------------------------------------------------------------------------

inline constexpr uint64_t kHeaderReserveBytes = 1 * MiB;
inline constexpr std::array<char, 8> kHeaderMagic = {'H', 'A', 'L', 'F', 'S', 'T', 'E', 'P'};

// Feature masks: a bit that this build does not know in `incompatible` refuses to open, in `read_only` refuses to write,
// in `compatible` is kept and ignored. Version 1 defines none.
struct StoreHeader {
  std::array<char, 8> magic = kHeaderMagic;
  uint32_t version = kVersion;
  uint32_t header_bytes = 0;  // this structure and the tables behind it
  uint64_t sequence = 0;      // of this snapshot; grows with every rewrite
  uint64_t start_number = 0;  // grows with every open; another one on flash means another owner
  uint64_t compatible = 0;
  uint64_t read_only = 0;
  uint64_t incompatible = 0;
  std::array<std::byte, 16> store_uuid{};
  std::array<std::byte, 32> secret{};  // first 16: index keys; last 16: page MACs
  // Owner
  std::array<std::byte, 16> boot_id{};
  std::array<char, 64> host{};
  uint32_t pid = 0;
  uint32_t clean_stop = 0;
  uint64_t store_time_s = 0;  // never runs backwards
  // Geometry
  uint64_t device_bytes = 0;
  uint64_t segment_bytes = 0;
  uint32_t segments = 0;
  uint32_t shards = 0;
  uint32_t block_bytes_max = 0;
  uint32_t log_half_pages = 0;
  uint32_t touch_pages = 0;  // per segment
  uint32_t next_scope = 1;   // only grows: a scope number is never used again
  // Tables, back to back behind this structure, in this order
  uint32_t device_count = 0;
  uint32_t namespace_count = 0;
  uint32_t layout_count = 0;
  uint32_t scope_count = 0;
  uint32_t wrapped_key_count = 0;  // 0 in version 1
  uint32_t next_namespace = 1;
  std::array<std::byte, 216> reserved1{};
  Sha256 checksum{};  // of the whole snapshot, this field zero
};
static_assert(sizeof(StoreHeader) == 512);
static_assert(offsetof(StoreHeader, version) == 8 && offsetof(StoreHeader, sequence) == 16);
static_assert(offsetof(StoreHeader, store_uuid) == 56 && offsetof(StoreHeader, secret) == 72 &&
              offsetof(StoreHeader, boot_id) == 104);
static_assert(offsetof(StoreHeader, host) == 120 && offsetof(StoreHeader, pid) == 184 &&
              offsetof(StoreHeader, device_bytes) == 200);
static_assert(offsetof(StoreHeader, device_count) == 240 && offsetof(StoreHeader, checksum) == 480);

struct DeviceRecord {
  std::array<std::byte, 16> uuid{};
  uint64_t bytes = 0;
  uint64_t start_number = 0;  // a device that lags joins empty
  uint32_t first_segment = 0;
  uint32_t segments = 0;
  uint64_t reserved[3] = {};
};
static_assert(sizeof(DeviceRecord) == 64);

// What one namespace may take of the header's reserve for layouts, so that others find room.
inline constexpr uint32_t kNamespaceLayoutsMax = 256;
inline constexpr uint32_t kNamespaceLayoutBytesMax = 256 * KiB;
static_assert(kNamespaceLayoutBytesMax + kNamespaceLayoutsMax * 64 < kHeaderReserveBytes / 2);
inline constexpr uint32_t kNamespaceNameBytesMax = 255;  // as on the wire
inline constexpr uint32_t kNamespaceSliding = 1;         // the default TTL counts from a block's last use
// Of flags: the default policy and the coarsest step that is allowed, both as wire::CodingRecord has them.
inline constexpr uint32_t kNamespacePolicyShift = 8, kNamespacePolicyMax = 255;
inline constexpr uint32_t kNamespaceStepLimitShift = 16;
struct NamespaceRecord {  // then the name
  uint64_t quota_bytes = 0;
  uint64_t pin_budget_bytes = 0;
  uint32_t default_ttl_s = 0;
  uint32_t number = 0;  // never used again
  uint16_t name_bytes = 0;
  uint16_t durability = 0;  // class; 0 = as the put asks
  uint32_t flags = 0;
};
static_assert(sizeof(NamespaceRecord) == 32);

struct LayoutRecord {  // then the canonical form; a layout's number is its place in this table
  uint32_t bytes = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(LayoutRecord) == 8);

struct ScopeRecord {  // live scopes; a number below next_scope that is not listed is retired
  uint32_t scope = 0;
  uint32_t namespace_number = 0;
  uint32_t layout = 0;
  uint32_t reserved = 0;
};
static_assert(sizeof(ScopeRecord) == 16);

}  // namespace halfstep::store::format
