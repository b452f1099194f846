// Arbitrary answers of a "daemon" to a client with a get and a put in flight, through the C interface and real rings: no
// crash, no byte outside the target, one answer for every item and one terminal event for every ticket, whatever comes. The
// input is a list of frames in short form (Script below), which are sealed properly, so that it is their sense that is fuzzed;
// what a frame looks like on the wire is net/stream_fuzz.cc's and wire/*_fuzz.cc's affair.
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <memory>
#include <string>
#include <vector>

#include "base/bytes.h"
#include "base/clock.h"
#include "base/crc.h"
#include "compress/codec.h"
#include "net/loop.h"
#include "net/shm_setup.h"
#include "peer/halfstep.h"
#include "wire/records.h"

namespace {

using namespace halfstep;
using Octets = std::vector<std::byte>;

void require(bool fact) {
  if (!fact) std::abort();
}

// The fuzzer looks at its watch by a SIGALRM without SA_RESTART.
template <typename Call>
auto uninterrupted(Call&& call) {
  auto result = call();
  while (result < 0 && errno == EINTR) result = call();
  return result;
}

// The daemon's end of a connection, which waits.
class Far final : public net::Watch {
 public:
  explicit Far(int socket)
      : graveyard_(loop_), transport_(net::accepted_transport(socket, {kRingBytes, kRingBytes}, graveyard_)) {
    require(loop_.open().ok() && transport_->start(loop_, this).ok());
  }
  void on_ready(uint32_t epoll_events) override { transport_->heard(epoll_events); }
  bool receive(Bytes into) {
    while (!into.empty()) {
      const iovec vector{into.data(), into.size()};
      const ssize_t got = transport_->receive(&vector, 1);
      if (got == -EAGAIN) {
        loop_.turn(kWaitUs);
      } else if (got <= 0) {
        return false;
      } else {
        into = into.subspan(static_cast<size_t>(got));
      }
    }
    return true;
  }
  bool send(ConstBytes bytes) {
    while (!bytes.empty()) {
      const iovec vector{const_cast<std::byte*>(bytes.data()), bytes.size()};
      const ssize_t sent = transport_->send(&vector, 1, false);
      if (sent == -EAGAIN) {
        loop_.turn(kWaitUs);
      } else if (sent <= 0) {
        return false;
      } else {
        bytes = bytes.subspan(static_cast<size_t>(sent));
      }
    }
    return true;
  }

 private:
  static constexpr uint32_t kRingBytes = 16 * 1024;
  static constexpr uint64_t kWaitUs = 1'000'000;
  SystemClock clock_;
  net::Loop loop_{clock_};
  net::RingGraveyard graveyard_;
  std::unique_ptr<net::Transport> transport_;
};

constexpr std::byte kGuard{0xA5};
constexpr size_t kGuardBytes = 256;
constexpr size_t kItems = 3;
constexpr size_t kRoomBytes = 3000;
constexpr uint32_t kBlockBytes = 2500;  // parts of 1000, 1000 and 500
constexpr const char* kKeys[kItems] = {"key-0", "key-1", "key-2"};

// Ids as connection.cc makes them: the first request of a connection gets serial 1 and slot 0, the second 2 and 1.
constexpr uint64_t kGetId = 0x100;
constexpr uint64_t kPutId = 0x201;

wire::Layout make_layout() {
  wire::Layout layout;
  const wire::GroupShape shape{.part_count = 0, .size_count = 1, .part_bytes = {1000}};
  require(wire::Layout::make({{"codec", "bfx"}, {"codec.0", "bf16"}}, {shape}, &layout).ok());
  return layout;
}

// The parts of a block that travels coded: proper units, of values of two magnitudes.
struct Unit {
  Octets bytes;
  wire::PartRecord record;
};
constexpr uint32_t kParts = 3;

std::array<Unit, kParts> make_units() {
  std::array<Unit, kParts> units;
  compress::Scratch scratch;
  for (uint32_t p = 0; p < kParts; ++p) {
    Octets raw(p == 2 ? 500 : 1000);
    for (size_t i = 0; i < raw.size(); i += 2) {
      const auto value = static_cast<uint16_t>((120 - i / 2 % 2) << 7 | i * 37 % 128);
      std::memcpy(raw.data() + i, &value, sizeof(value));
    }
    Unit& unit = units[p];
    unit.bytes.resize(raw.size());
    const compress::UnitShape shape{compress::Element::Bf16, 0};
    unit.bytes.resize(compress::find_codec(uint32_t{compress::kBfx})->encode(raw, shape, scratch, unit.bytes));
    unit.record.codec = unit.bytes.empty() ? compress::kRaw : compress::kBfx;
    if (unit.bytes.empty()) unit.bytes = raw;
    unit.record.stored_bytes = static_cast<uint32_t>(unit.bytes.size());
    unit.record.raw_bytes = static_cast<uint32_t>(raw.size());
    unit.record.raw_crc = crc32c(raw);
  }
  require(units[0].record.codec == compress::kBfx);
  return units;
}

class Listener {
 public:
  Listener() : path_("/tmp/halfstep-peer-fuzz-" + std::to_string(::getpid())) {
    descriptor_ = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    sockaddr_un address{};
    address.sun_family = AF_UNIX;
    std::memcpy(address.sun_path, path_.c_str(), path_.size() + 1);
    ::unlink(path_.c_str());
    require(::bind(descriptor_, reinterpret_cast<sockaddr*>(&address), sizeof(address)) == 0);
    require(::listen(descriptor_, 16) == 0);
  }
  ~Listener() {
    ::close(descriptor_);
    ::unlink(path_.c_str());
  }
  int accept() const {
    return uninterrupted([&] { return ::accept4(descriptor_, nullptr, nullptr, SOCK_CLOEXEC); });
  }
  std::string address() const { return "unix:" + path_; }

 private:
  std::string path_;
  int descriptor_;
};

bool read_frame(Far& far) {
  std::array<std::byte, wire::kHeaderBytes> head;
  if (!far.receive(head)) return false;
  const auto header = load_le<wire::Header>(head.data());
  Octets rest(size_t{header.body_bytes} + header.payload_bytes);
  return far.receive(rest);
}

void add_whole_ok(wire::FrameWriter& frame) {
  wire::StatusWriter status(frame, wire::kWholeRequest, 0);
  status.add(0, {wire::Answer::Ok, wire::Reason::None});
  status.close();
}

// Greets and registers the layout as a good daemon does, then has both requests.
bool shake_hands(Far& far, const wire::Layout& layout) {
  Octets out;
  wire::FrameWriter frame(out);
  const auto send_all = [&] {
    const bool whole = far.send(out);
    out.clear();
    return whole;
  };
  if (!read_frame(far)) return false;
  frame.begin(wire::Opcode::Final, uint64_t{1} << 56);
  add_whole_ok(frame);
  frame.tlv(wire::Tlv::HelloServer, wire::HelloServer{.block_bytes_max = 1 << 20});
  frame.tlv(wire::Tlv::ShardMap, wire::ShardAddress{});
  frame.finish();
  if (!send_all() || !read_frame(far)) return false;
  frame.begin(wire::Opcode::Final, uint64_t{2} << 56);
  add_whole_ok(frame);
  frame.tlv(wire::Tlv::LayoutHandle, wire::LayoutHandleRecord{.handle = 5, .id = layout.id()});
  frame.finish();
  if (!send_all()) return false;
  return read_frame(far) && read_frame(far);
}

// Frames in short form: u8 opcode, u8 whose, then by opcode.
class Script {
 public:
  Script(ConstBytes input, const wire::Layout& layout) : reader_(input), layout_(layout) {}

  Octets frames() {
    while (reader_.left() > 1) add_frame();
    return std::move(out_);
  }

 private:
  uint8_t byte() { return reader_.take<uint8_t>(); }

  void add_frame() {
    static constexpr wire::Opcode kOpcodes[] = {wire::Opcode::Chunk, wire::Opcode::Final, wire::Opcode::Answers,
                                                wire::Opcode::Want,  wire::Opcode::Abort, wire::Opcode::Chunk};
    const uint8_t choice = byte();
    const auto opcode = choice < 240 ? kOpcodes[choice % std::size(kOpcodes)] : static_cast<wire::Opcode>(choice & 0x7F);
    const uint8_t whose = byte();
    const uint64_t id = whose < 250 ? (whose % 2 == 0 ? kGetId : kPutId) : uint64_t{whose} << (whose % 8 * 8);
    wire::FrameWriter frame(out_);
    frame.begin(opcode, id);
    if (opcode == wire::Opcode::Chunk) {
      add_chunk(frame);
    } else {
      for (uint8_t left = byte() % 4; left > 0; --left) add_tlv(frame, opcode);
      frame.finish();
    }
  }

  void add_tlv(wire::FrameWriter& frame, wire::Opcode opcode) {
    const uint8_t kind = byte();
    if (opcode == wire::Opcode::Want && kind < 200) {
      frame.open_tlv(wire::Tlv::Grant);
      frame.value().put(wire::GrantHead{.credit_bytes = byte(), .range_count = 1});
      frame.value().put(
          wire::ItemRange{.section = static_cast<uint16_t>(byte() % 2), .first = byte() % 4U, .count = byte() % 4U});
      frame.close_tlv();
    } else if (kind < 200) {
      wire::StatusRun run;
      const uint8_t section = byte();
      const uint8_t range = byte();
      run.first = range % 4;
      run.count = range / 4 % 4;
      run.answer = static_cast<wire::Answer>(range / 16 % 8);
      run.reason = static_cast<wire::Reason>(byte());
      frame.open_tlv(wire::Tlv::Statuses);
      frame.value().put(static_cast<uint16_t>(section < 200 ? section % 2 : wire::kWholeRequest));
      frame.value().put(static_cast<uint16_t>(section == 199 ? 1 : 0));
      frame.value().put(uint32_t{1});
      frame.value().put(run);
      frame.close_tlv();
    } else {
      frame.tlv_bytes(static_cast<wire::Tlv>(kind - 200), reader_.take_bytes(std::min<size_t>(byte(), reader_.left())));
    }
  }

  // A table of item `what`, and what is off with it, by `how`; or none.
  void add_table(wire::FrameWriter& frame, uint8_t what, uint8_t how) {
    if ((what & 16) != 0) return;
    for (int tables = how == 1 ? 2 : 1; tables > 0; --tables) {
      frame.open_tlv(wire::Tlv::PartTable);
      frame.value().put(uint16_t{0});
      frame.value().put(uint16_t{0});
      frame.value().put(uint32_t{what % 4U});
      frame.value().put(kParts);
      frame.value().put(uint32_t{0});
      for (const Unit& unit : units_) {
        wire::PartRecord record = unit.record;
        if (how == 2) record.stored_bytes = record.raw_bytes + 1;
        if (how == 3) record.codec = 5;
        if (how == 4) record.raw_bytes -= 2;
        if (how == 5) record.raw_crc ^= 1;
        frame.value().put(record);
      }
      frame.close_tlv();
    }
  }

  // A run of a coded block: a whole part, or a piece of one.
  void add_coded_run(uint8_t what, uint8_t how, std::vector<wire::Run>& runs, std::vector<uint32_t>& checks, Octets& payload) {
    wire::Run run;
    run.item = what % 4;
    run.part = what / 4 % 4;
    run.flags = wire::kRunCoded;
    run.block_bytes = kBlockBytes;
    const Octets& unit = units_[run.part % kParts].bytes;
    const auto half = static_cast<uint32_t>(unit.size() / 2);
    run.offset = how == 7 ? half : 0;
    run.bytes = static_cast<uint32_t>(how == 6 ? half : unit.size() - run.offset);
    run.check_count = how == 6 ? 0 : 1;
    payload.insert(payload.end(), unit.begin() + run.offset, unit.begin() + run.offset + run.bytes);
    const uint32_t number = wire::name_number(layout_.id(), wire::Component{0}, as_bytes(kKeys[run.item % kItems]));
    if (run.check_count == 1) checks.push_back(wire::wire_check(crc32c(unit), number, run.part));
    runs.push_back(run);
  }

  // Runs, most of them nearly right: one byte says what is off, and whether they are coded.
  void add_chunk(wire::FrameWriter& frame) {
    std::vector<wire::Run> runs;
    std::vector<uint32_t> checks;
    Octets payload;
    for (uint8_t left = 1 + byte() % 4; left > 0; --left) {
      const uint8_t what = byte();
      const uint8_t off = byte();
      if (off % 16 >= 8) {
        add_table(frame, what, off % 8);
        add_coded_run(what, off % 8, runs, checks, payload);
        continue;
      }
      wire::Run run;
      run.item = what % 4;
      run.part = what / 4 % 4;
      run.block_bytes = kBlockBytes;
      run.bytes = run.part == 2 ? 500 : 1000;
      run.check_count = 1;
      if (off % 16 == 1) run.bytes = run.part_count = byte(), run.bytes *= 100;
      if (off % 16 == 2) run.offset = byte() * 10U, run.bytes = byte() * 10U;
      if (off % 16 == 3) run.block_bytes = reader_.take<uint16_t>();
      if (off % 16 == 4) run.flags = byte() % 4;
      if (off % 16 == 5) run.section = byte();
      if (off % 16 == 6) run.bytes = byte() * 4U, run.check_count = 0;
      if (off % 16 == 7) run.part_count = 2, run.check_count = 2, run.bytes = 2000;
      Octets bytes(run.bytes, std::byte{off});
      payload.insert(payload.end(), bytes.begin(), bytes.end());
      const uint32_t number = wire::name_number(layout_.id(), wire::Component{0}, as_bytes(kKeys[run.item % kItems]));
      for (uint32_t c = 0; c < run.check_count; ++c) {
        const size_t part_bytes = std::min<size_t>(1000, bytes.size() - std::min<size_t>(bytes.size(), c * size_t{1000}));
        const uint32_t crc = crc32c(ConstBytes(bytes).first(part_bytes));
        checks.push_back(wire::wire_check(crc, number, run.part + c) ^ (off >= 250 ? 1U : 0U));
      }
      runs.push_back(run);
    }
    frame.open_tlv(wire::Tlv::Runs);
    frame.value().put(static_cast<uint32_t>(runs.size()));
    frame.value().put(static_cast<uint32_t>(checks.size()));
    for (const wire::Run& run : runs) frame.value().put(run);
    for (const uint32_t check : checks) frame.value().put(check);
    frame.close_tlv();
    frame.finish(static_cast<uint32_t>(payload.size()));
    out_.insert(out_.end(), payload.begin(), payload.end());
  }

  Reader reader_;
  const wire::Layout& layout_;
  const std::array<Unit, kParts> units_ = make_units();
  Octets out_;
};

std::vector<uint8_t> packed_keys() {
  std::vector<uint8_t> out;
  for (const char* key : kKeys) {
    out.push_back(static_cast<uint8_t>(std::strlen(key)));
    out.insert(out.end(), key, key + std::strlen(key));
  }
  return out;
}

bool guarded(const Octets& memory) {
  const auto is_guard = [](std::byte byte) { return byte == kGuard; };
  return std::all_of(memory.begin(), memory.begin() + kGuardBytes, is_guard) &&
         std::all_of(memory.end() - kGuardBytes, memory.end(), is_guard);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const Listener listener;
  static const wire::Layout layout = make_layout();
  static const std::vector<uint8_t> keys = packed_keys();
  const ConstBytes input(reinterpret_cast<const std::byte*>(data), size);
  const Octets frames = Script(input, layout).frames();

  const std::string address = listener.address();
  hs_options options{};
  options.struct_bytes = sizeof(options);
  options.address = address.c_str();
  options.codecs = size % 4 < 2 ? 0 : compress::kCodecs;
  options.backoff_ms_min = options.backoff_ms_max = 60'000;
  hs_client* client = nullptr;
  hs_queue* queue = nullptr;
  require(hs_client_open(&options, &client, nullptr, 0) == 0 && hs_queue_open(client, &queue) == 0);
  const int handle = hs_layout_register(client, layout.canonical().data(), layout.canonical().size());

  Octets target(kItems * kRoomBytes + 2 * kGuardBytes, kGuard);
  Octets source(kItems * kBlockBytes);
  std::array<hs_iovec, kItems> to;
  std::array<hs_iovec, kItems> from;
  std::array<uint32_t, kItems> block_bytes;
  for (size_t i = 0; i < kItems; ++i) {
    to[i] = {target.data() + kGuardBytes + i * kRoomBytes, kRoomBytes};
    from[i] = {source.data() + i * kBlockBytes, kBlockBytes};
    block_bytes[i] = kBlockBytes;
  }
  std::array<hs_answer, kItems> get_answers{};
  std::array<hs_answer, kItems> put_answers{};
  hs_section section{};
  section.layout = handle;
  section.key_count = kItems;
  section.keys = keys.data();
  section.keys_bytes = static_cast<uint32_t>(keys.size());
  section.target_kind = HS_TARGET_IOVEC;
  section.block_bytes = block_bytes.data();
  hs_batch batch{};
  batch.struct_bytes = sizeof(batch);
  batch.deadline_us = 60'000'000;
  batch.sections = &section;
  batch.section_count = 1;
  batch.operation = HS_OP_GET;
  section.iovecs = to.data();
  section.answers = get_answers.data();
  require(hs_submit(queue, &batch, nullptr, 0) != 0);
  batch.operation = HS_OP_PUT;
  section.iovecs = from.data();
  section.answers = put_answers.data();
  require(hs_submit(queue, &batch, nullptr, 0) != 0);

  const int socket = listener.accept();
  require(socket >= 0);
  auto far = std::make_unique<Far>(socket);
  require(shake_hands(*far, layout));
  for (ConstBytes rest(frames); !rest.empty();) {
    const size_t step = std::min<size_t>(rest.size(), size % 2 == 0 ? rest.size() : 1500);
    if (!far->send(rest.first(step))) break;  // the client has had enough
    rest = rest.subspan(step);
  }
  far = nullptr;
  for (int done = 0; done < 2;) {
    hs_event event{};
    require(hs_queue_wait(queue, &event, 1, 30'000'000) == 1);
    if (event.kind == HS_EVENT_DONE) ++done;
  }
  hs_event none{};
  require(hs_queue_poll(queue, &none, 1) == 0);
  require(guarded(target));
  for (const hs_answer& answer : get_answers) require(answer.answer != HS_PENDING);
  for (const hs_answer& answer : put_answers) require(answer.answer != HS_PENDING);
  const Octets settled = target;
  hs_client_close(client);
  hs_queue_close(queue);
  require(target == settled);
  return 0;
}
