// The store header's decoder: as the bytes are, and with the checksum made right, so that the tables behind it are reached.
#include "store/format/header.h"

#include <cstdlib>
#include <cstring>

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace halfstep;
  using namespace halfstep::store;
  std::vector<std::byte> bytes(size);
  if (size > 0) std::memcpy(bytes.data(), data, size);
  HeaderState state;
  (void)decode_header(bytes, &state);
  if (size < sizeof(format::StoreHeader)) return 0;

  auto header = load_le<format::StoreHeader>(bytes.data());
  header.magic = format::kHeaderMagic;
  header.version = format::kVersion;
  header.header_bytes = static_cast<uint32_t>(size);
  header.incompatible = header.read_only = 0;
  header.checksum = {};
  store_le(bytes.data(), header);
  store_le(bytes.data() + offsetof(format::StoreHeader, checksum), sha256(bytes));
  if (decode_header(bytes, &state).ok()) {
    // What is accepted can be written again and says the same.
    std::vector<std::byte> again;
    HeaderState twice;
    if (!encode_header(state, &again).ok() || !decode_header(again, &twice).ok()) std::abort();
    if (twice.scopes.size() != state.scopes.size() || twice.namespaces.size() != state.namespaces.size()) std::abort();
  }
  return 0;
}
