#include "compress/codec.h"

#include "compress/bfx.h"
#include "compress/raw.h"
#include "compress/ubq.h"
#include "compress/zstd.h"

namespace halfstep::compress {
namespace {

constexpr Codec kTable[] = {
    {kRaw, "raw", false, &raw_encode, &raw_decode, &raw_inspect},
    {kBfx, "bfx", false, &bfx_encode, &bfx_decode, &bfx_inspect},
    {kUbq, "ubq", true, &ubq_encode, &ubq_decode, &ubq_inspect},
    {kZstd, "zstd", false, &zstd_encode, &zstd_decode, &zstd_inspect},
};

}  // namespace

std::span<const Codec> codecs() noexcept { return kTable; }

const Codec* find_codec(uint32_t number) noexcept {
  for (const Codec& codec : kTable) {
    if (codec.number == number) return &codec;
  }
  return nullptr;
}

const Codec* find_codec(std::string_view name) noexcept {
  for (const Codec& codec : kTable) {
    if (codec.name == name) return &codec;
  }
  return nullptr;
}

}  // namespace halfstep::compress
