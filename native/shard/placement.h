// placement.h — memory of a client's that its gets may be written into and its puts read from, and where the bytes of one lie
// there. Placement is a connection's: the regions and templates that it registered. RequestPlaces is a request's: the places
// that its sections name, looked over once against those, or against regions that it brings for itself alone. Invariants:
// nothing of the client's is believed: every address that is handed on lies within a region that the connection has registered,
// or the request brought, at the moment when it is handed on. Wrong bytes harm none but the client, whose memory it is. Thread:
// the shard's.
#pragma once

#include <array>
#include <cstdint>
#include <memory>
#include <vector>

#include "base/bytes.h"
#include "base/status.h"
#include "net/transport.h"
#include "wire/places.h"
#include "wire/records.h"

namespace halfstep::shard {

class Client;

class Placement {
 public:
  // All templates of a connection have no more parts than this.
  static constexpr uint32_t kPartsMax = 8192;

  void set_region(const wire::RegionRecord& region) noexcept { regions_[region.number] = region; }
  // TooLarge: more parts than a connection may have.
  Status set_template(const wire::TemplateView& view);
  // Bytes 0: there is none.
  const wire::RegionRecord& region(uint32_t number) const noexcept { return regions_[number]; }
  // Stays as it is, whatever is registered afterwards; null: there is none.
  std::shared_ptr<const std::vector<wire::PlacePart>> parts(uint32_t number) const noexcept { return templates_[number]; }

 private:
  std::array<wire::RegionRecord, wire::kRegionsMax> regions_{};
  std::array<std::shared_ptr<const std::vector<wire::PlacePart>>, wire::kTemplatesMax> templates_;
  uint32_t parts_ = 0;
};

class RequestPlaces {
 public:
  // Beside its body, of each item. Pieces have 8 bytes more each, half of what they have in the body.
  static constexpr size_t kItemBytes = sizeof(uint32_t);

  // Of a request that the connection may have placed; null: of none. `view` and what it refers to stay until clear().
  // Invalid, with a sentence: a place leaves its region. A section whose regions or template are not known is not placed.
  Fault begin(const wire::RequestView& view, const Placement* placement);
  void clear() noexcept;
  // Some section is placed.
  bool any() const noexcept { return any_; }
  bool placed(uint32_t section) const noexcept { return any_ && sections_[section].placed; }

  // Where `count` bytes of a part lie, from `offset` in it on. `at`: where the part begins among the item's bytes that are
  // asked for. Appends to `out`, and makes one of what touches. False: they are not all in known regions, or lie in so many
  // pieces that `out` has got more than runs_max.
  bool find(uint32_t section, uint32_t item, uint32_t part, uint64_t at, uint32_t offset, uint32_t count, size_t runs_max,
            std::vector<net::RemoteRun>& out) const;

 private:
  struct Section {
    bool placed = false;
    wire::PlacesView pieces;
    wire::PlaceRowsView rows;
    std::shared_ptr<const std::vector<wire::PlacePart>> parts;
    std::vector<uint32_t> first_piece;  // by item, and one past the end
    std::vector<uint64_t> piece_ends;   // by piece: the bytes of all up to it, those of earlier items as well
  };
  Fault begin_pieces(uint32_t number, ConstBytes value);
  Fault begin_rows(uint32_t number, ConstBytes value);
  bool find_in_pieces(const Section& section, uint32_t item, uint64_t at, uint32_t count, size_t runs_max,
                      std::vector<net::RemoteRun>& out) const;
  bool add(uint32_t region, uint64_t offset, uint32_t bytes, std::vector<net::RemoteRun>& out) const;
  // Its own before the connection's.
  const wire::RegionRecord& region(uint32_t number) const noexcept;

  const Placement* placement_ = nullptr;
  std::vector<wire::RegionRecord> own_;
  std::array<uint8_t, wire::kRegionsMax> own_at_{};  // by number: where in own_, from 1 on; 0: it brought none
  bool any_ = false;
  std::vector<Section> sections_;
};

// Null: nothing of this request can be placed.
const Placement* placement_for(Client& client, const wire::RequestView& view);
void register_region(Client& client, uint64_t id, ConstBytes body);
void register_template(Client& client, uint64_t id, ConstBytes body);

}  // namespace halfstep::shard
