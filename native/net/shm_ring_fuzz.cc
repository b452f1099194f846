// A ring whose other side writes whatever the input says, into the control words and the data, between the calls of an honest
// reader and writer: nothing outside the ring and the target is touched, no call moves more than was asked, a position that
// cannot be ends it for good.
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <vector>

#include "base/bytes.h"
#include "net/shm_ring.h"

namespace {

using namespace halfstep;

constexpr size_t kRing = 4096;

void require(bool fact) {
  if (!fact) std::abort();
}

// One call of an honest side, and what it may answer.
template <typename Call>
void honest(size_t asked, bool* broken, Call&& call) {
  std::vector<std::byte> memory(asked + 1, std::byte{0x5A});  // exactly as long as it may be touched: sanitizers look on
  const iovec vectors[] = {{memory.data(), asked / 3}, {memory.data() + asked / 3, asked - asked / 3}};
  const ssize_t moved = call(vectors);
  require(moved == -EAGAIN || moved == -EPROTO || (moved >= 0 && static_cast<size_t>(moved) <= asked));
  require(!*broken || moved == -EPROTO);
  if (moved == -EPROTO) *broken = true;
  require(memory[asked] == std::byte{0x5A});
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  net::RingControl control{};
  std::vector<std::byte> ring(kRing);
  net::RingReader reader(control, ring, -1);
  net::RingWriter writer(control, ring, -1);
  bool reader_broken = false;
  bool writer_broken = false;
  for (; size >= 10; data += 10, size -= 10) {
    uint64_t value = 0;
    std::memcpy(&value, data + 2, sizeof(value));
    const size_t asked = size_t{data[1]} * 40;
    switch (data[0] % 8) {
      case 0: control.tail = value; break;
      case 1: control.head = value; break;
      case 2: control.tail = control.tail + value % (kRing + 2); break;
      case 3: control.head = control.head + value % (kRing + 2); break;
      case 4:
        control.reader_waits = static_cast<uint32_t>(value);
        control.writer_waits = static_cast<uint32_t>(value >> 32);
        break;
      case 5: ring[value % kRing] = static_cast<std::byte>(data[1]); break;
      case 6: honest(asked, &reader_broken, [&](const iovec* to) { return reader.read(to, 2); }); break;
      default: honest(asked, &writer_broken, [&](const iovec* from) { return writer.write(from, 2); }); break;
    }
    require(writer.unread() <= kRing);
  }
  return 0;
}
