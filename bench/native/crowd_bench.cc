// crowd_bench.cc — many clients of one daemon, all turned by one thread: what does each of them get of it?
// Usage: halfstep_crowd_bench --address HOST:PORT [--namespace NAME] [--clients N] [--bs N] [--batch N] [--size N]
//                             [--warm-up MS] [--runtime MS] [--core N] [--seed N]
// One JSON document on stdout, for bench/many_clients.py: "blocks_each" has what came to each client within the time,
// "core_busy" what this process took of a core.
//
// Each client is a connection of its own that speaks the protocol itself and always has one get at the daemon: of --batch
// neighbours, anywhere in a set of --size bytes that the client core puts there first. Threads of their own would share a core
// as the kernel has it, and what one client got would say how often its thread came to run; here, only who was sent what.
// Every byte that comes is summed against its wire check, under its block's name, and every block has its number in its first
// and last words. Exit status 1 when one was wrong or missing.
#include <poll.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <numeric>
#include <string>
#include <vector>

#include "base/clock.h"
#include "base/crc.h"
#include "base/prng.h"
#include "core_client.h"
#include "net/loop.h"
#include "net/socket.h"
#include "net/stream.h"
#include "peer/answers.h"
#include "program.h"
#include "wire/layout.h"
#include "wire/records.h"

namespace halfstep {
namespace {

using bench::fail;
using wire::Answer;
using wire::Opcode;
using wire::Tlv;
using SteadyClock = std::chrono::steady_clock;

constexpr uint64_t kHello = 1, kLayout = 2, kFirstGet = 3;
constexpr int kConnectMs = 5000;
constexpr uint64_t kTurnUs = 100'000;
// With everything asked for and nothing coming for so long, it is the daemon that does not answer.
constexpr uint64_t kSilenceS = bench::kCallDeadlineUs / 1'000'000 + 10;

struct Options {
  std::string address;
  std::string name_space = "default";
  uint64_t clients = 192;
  uint64_t bs = 64 << 10;
  uint64_t batch = 4;
  uint64_t size = 8 << 20;
  uint64_t warm_up = 500;
  uint64_t runtime = 5000;
  uint64_t core = bench::kAnyCore;
  uint64_t seed = 1;

  uint64_t batches() const { return std::max<uint64_t>(size / (bs * batch), 1); }
};

// What all clients have in common.
struct Crowd {
  const Options& options;
  const bench::CoreClient& content;
  const wire::Layout& layout;
  SteadyClock::time_point begin{}, end{};  // what ends between them counts
  std::vector<double> latencies_us;
  double slowest_us = 0;  // of all that ended after `begin`, however late
  uint64_t under_way = 0;
  SteadyClock::time_point heard{};
};

class Member final : public net::FrameSink {
 public:
  Member(Crowd& crowd, net::Loop& loop, const net::Address& address, uint64_t number)
      : crowd_(crowd),
        prng_(crowd.options.seed + number),
        call_(crowd.content.make_call(crowd.options.batch, number)),
        names_(crowd.options.batch),
        sums_(crowd.options.batch),
        arrived_(crowd.options.batch) {
    numbers_.resize(crowd.options.batch);
    int descriptor = -1;
    if (const Fault fault = net::start_connect(address, &descriptor); !fault.ok()) fail(fault.what);
    pollfd connected{.fd = descriptor, .events = POLLOUT, .revents = 0};
    if (::poll(&connected, 1, kConnectMs) != 1 || !net::connect_result(descriptor).ok())
      fail("client " + std::to_string(number) + ": no connection to " + crowd.options.address);
    stream_ = std::make_unique<net::FrameStream>(loop, descriptor, *this);
    if (!stream_->start().ok()) fail("client " + std::to_string(number) + ": epoll takes no more");
    say(Opcode::Hello, kHello, [&](wire::FrameWriter& frame) {
      frame.tlv(Tlv::HelloClient, wire::HelloClient{.client_id = prng_.next()});
      frame.tlv_bytes(Tlv::NamespaceName, as_bytes(crowd.options.name_space));
    });
  }

  bool ready() const noexcept { return ready_; }
  uint64_t blocks() const noexcept { return blocks_; }

  void ask() {
    const uint64_t batch = crowd_.options.batch;
    std::iota(numbers_.begin(), numbers_.end(), prng_.below(crowd_.options.batches()) * batch);
    crowd_.content.prepare(call_, HS_OP_GET, numbers_);
    const size_t key_bytes = call_.keys.size() / batch;
    for (uint64_t i = 0; i < batch; ++i) {
      const ConstBytes packed(reinterpret_cast<const std::byte*>(call_.keys.data()) + i * key_bytes, key_bytes);
      names_[i] = wire::name_number(crowd_.layout.id(), {}, packed.subspan(1));
      sums_[i] = 0;
      arrived_[i] = false;
    }
    say(Opcode::Get, ++request_, [&](wire::FrameWriter& frame) {
      frame.tlv(Tlv::Batch, wire::Batch{.deadline_us = bench::kCallDeadlineUs});
      frame.open_tlv(Tlv::Section);
      frame.value().put(wire::SectionHead{.layout = handle_,
                                          .key_count = static_cast<uint32_t>(batch),
                                          .keys_bytes = static_cast<uint32_t>(call_.keys.size())});
      frame.value().put_bytes({reinterpret_cast<const std::byte*>(call_.keys.data()), call_.keys.size()});
      frame.close_tlv();
    });
    begun_ = SteadyClock::now();
    asked_ = true;
    ++crowd_.under_way;
  }

  // net::FrameSink
  Status on_frame(const wire::Header& header, ConstBytes body, net::Landing* landing) override {
    if (header.opcode == static_cast<uint8_t>(Opcode::Chunk)) return land(header, body, landing);
    if (Status s = name_refusals(body); !s.ok()) return s;
    if (header.opcode == static_cast<uint8_t>(Opcode::Answers)) return {};
    peer::FinalNotes notes;
    if (Status s = peer::take_notes(body, &notes); !s.ok()) return s;
    if (header.opcode != static_cast<uint8_t>(Opcode::Final)) fail("the daemon ends a connection: " + notes.reason);
    if (notes.whole.answer != Answer::Ok && notes.whole.answer != Answer::Pending) {
      fail("answered " + std::string(hs_answer_name(static_cast<uint8_t>(notes.whole.answer))) + ": " + notes.reason);
    }
    if (header.request_id == kHello) {
      wire::HelloServer hello;
      if (Status s = wire::parse_hello_server(notes.hello, &hello); !s.ok()) return s;
      if (hello.shards > 1)
        fail("the daemon has " + std::to_string(hello.shards) + " shards; clients of this program ask one: serve it with one");
      say(Opcode::RegisterLayout, kLayout,
          [&](wire::FrameWriter& frame) { frame.tlv_bytes(Tlv::LayoutCanonical, crowd_.layout.canonical()); });
    } else if (header.request_id == kLayout) {
      if (!notes.has_layout) fail("a layout was registered, and no handle came with it");
      handle_ = notes.layout.handle;
      ready_ = true;
    } else if (header.request_id == request_ && asked_) {
      ended();
    } else {
      fail("a Final came for request " + std::to_string(header.request_id) + ", which is not under way");
    }
    return {};
  }
  void on_landed(ConstBytes piece, size_t /*skipped*/) override {
    while (!piece.empty() && step_ < steps_.size()) {
      Step& step = steps_[step_];
      const size_t take = std::min<size_t>(piece.size(), step.left);
      sums_[step.item] = crc32c(piece.first(take), sums_[step.item]);
      piece = piece.subspan(take);
      step.left -= static_cast<uint32_t>(take);
      if (step.left != 0) continue;
      if (step.ends) arrived_[step.item] = wire::wire_check(sums_[step.item], names_[step.item], 0) == step.check;
      ++step_;
    }
  }
  Status on_chunk_end() override { return {}; }
  void on_sendable() override {}
  void on_closed(Status why) override { fail("a connection was closed: " + std::string(code_name(why.code()))); }

 private:
  struct Step {
    uint32_t item, left, check;
    bool ends;
  };

  template <typename Fill>
  void say(Opcode opcode, uint64_t id, Fill&& fill) {
    frame_.clear();
    wire::FrameWriter frame(frame_);
    frame.begin(opcode, id);
    fill(frame);
    frame.finish();
    stream_->send(frame_);
  }

  // Of blocks that are answered with something else than ok.
  Status name_refusals(ConstBytes body) {
    wire::TlvReader reader(body);
    wire::TlvView tlv;
    while (reader.next(&tlv)) {
      if (static_cast<Tlv>(tlv.kind) != Tlv::Statuses) continue;
      const auto name = [](uint16_t section, uint16_t /*unit*/, const wire::StatusRun& run) {
        if (section == wire::kWholeRequest || run.answer == Answer::Ok || run.answer == Answer::Pending) return;
        fail(std::to_string(run.count) + " blocks of a get were answered " + hs_answer_name(static_cast<uint8_t>(run.answer)) +
             " (" + hs_reason_name(static_cast<uint16_t>(run.reason)) + ")");
      };
      if (Status s = wire::for_status_runs(tlv.value, name); !s.ok()) return s;
    }
    return reader.status();
  }

  // A block is one part, so that a run is a block or a piece of one.
  Status land(const wire::Header& header, ConstBytes body, net::Landing* landing) {
    wire::RunsView runs;
    if (Status s = wire::parse_chunk(body, header.payload_bytes, &runs); !s.ok()) return s;
    steps_.clear();
    step_ = 0;
    uint32_t next_check = 0;
    for (uint32_t r = 0; r < runs.run_count; ++r) {
      const wire::Run run = runs.run(r);
      const uint64_t bs = crowd_.options.bs;
      const bool fits = header.request_id == request_ && run.section == 0 && run.flags == 0 && run.part == 0 &&
                        run.part_count == 1 && run.item < numbers_.size() && run.block_bytes == bs &&
                        uint64_t{run.offset} + run.bytes <= bs;
      if (!fits) {
        fail("a Chunk of request " + std::to_string(header.request_id) + " names block " + std::to_string(run.item) +
             ", part " + std::to_string(run.part) + ", " + std::to_string(run.bytes) + " bytes at " +
             std::to_string(run.offset) + ": not what was asked for");
      }
      const bool ends = run.check_count == 1;
      steps_.push_back({run.item, run.bytes, ends ? runs.check(next_check++) : 0, ends});
      landing->to({static_cast<std::byte*>(call_.pieces[run.item].base) + run.offset, run.bytes});
    }
    return {};
  }

  void ended() {
    const SteadyClock::time_point now = crowd_.heard = SteadyClock::now();
    --crowd_.under_way;
    asked_ = false;
    for (size_t i = 0; i < arrived_.size(); ++i) {
      call_.answers[i] = {.answer = HS_OK, .zero = 0, .reason = 0};
      if (!arrived_[i]) fail("block " + std::to_string(numbers_[i]) + " did not come, or not with its checksum");
    }
    bench::CoreClient::require(crowd_.content.check(call_));
    const double took_us = std::chrono::duration<double, std::micro>(now - begun_).count();
    if (now >= crowd_.begin) crowd_.slowest_us = std::max(crowd_.slowest_us, took_us);
    if (now >= crowd_.begin && now < crowd_.end) {
      blocks_ += arrived_.size();
      crowd_.latencies_us.push_back(took_us);
    }
    if (now < crowd_.end) ask();
  }

  Crowd& crowd_;
  Prng prng_;
  bench::Call call_;
  std::unique_ptr<net::FrameStream> stream_;
  std::vector<std::byte> frame_;
  uint16_t handle_ = 0;
  bool ready_ = false;
  bool asked_ = false;
  uint64_t request_ = kFirstGet;
  uint64_t blocks_ = 0;
  SteadyClock::time_point begun_;
  // Of the get that is under way, by block.
  std::vector<uint64_t> numbers_;
  std::vector<uint32_t> names_, sums_;
  std::vector<bool> arrived_;
  // Of the Chunk that lands.
  std::vector<Step> steps_;
  size_t step_ = 0;
};

Options options_of(int count, char** arguments) {
  Options options;
  const bench::Number numbers[] = {
      {"--clients", &options.clients}, {"--bs", &options.bs},           {"--batch", &options.batch}, {"--size", &options.size},
      {"--warm-up", &options.warm_up}, {"--runtime", &options.runtime}, {"--core", &options.core},   {"--seed", &options.seed}};
  const bench::Text texts[] = {{"--address", &options.address}, {"--namespace", &options.name_space}};
  bench::read_options(count, arguments, numbers, texts);
  if (options.address.empty()) fail("--address: none given; name a daemon's, HOST:PORT");
  bench::within("--clients", options.clients, 1, 4096);
  bench::within("--bs", options.bs, 16, wire::kOpaquePartBytes);
  bench::within("--batch", options.batch, 1, 64);
  bench::within("--size", options.size, 0, uint64_t{64} << 30);
  bench::within("--warm-up", options.warm_up, 0, bench::kRuntimeMsMax);
  bench::within("--runtime", options.runtime, 1, bench::kRuntimeMsMax);
  return options;
}

}  // namespace
}  // namespace halfstep

int main(int count, char** arguments) {
  using namespace halfstep;
  const Options options = options_of(count, arguments);
  bench::pin(options.core);
  net::Address address;
  if (const Fault fault = net::Address::parse(options.address, &address); !fault.ok()) fail(fault.what);
  if (address.is_unix) fail("--address " + options.address + ": clients of this program come over TCP; give HOST:PORT");
  bench::CoreClient client(
      {.address = options.address, .name_space = options.name_space, .bs = options.bs, .seed = options.seed});
  bench::Bulk(client).put(0, options.batches() * options.batch);

  const wire::Layout layout = bench::CoreClient::layout();
  Crowd crowd{.options = options, .content = client, .layout = layout, .latencies_us = {}};
  const SystemClock clock;
  net::Loop loop(clock);
  if (!loop.open().ok()) fail("epoll: out of descriptors");
  std::vector<std::unique_ptr<Member>> members;
  for (uint64_t i = 0; i < options.clients; ++i) members.push_back(std::make_unique<Member>(crowd, loop, address, i));
  crowd.heard = SteadyClock::now();
  const auto turn = [&] {
    loop.turn(kTurnUs);
    if (SteadyClock::now() > crowd.heard + std::chrono::seconds(kSilenceS))
      fail(options.address + ": answered nothing for " + std::to_string(kSilenceS) +
           " s; is the daemon stopped or far too slow?");
  };
  while (!std::ranges::all_of(members, [](const auto& member) { return member->ready(); })) turn();
  crowd.begin = SteadyClock::now() + std::chrono::milliseconds(options.warm_up);
  crowd.end = crowd.begin + std::chrono::milliseconds(options.runtime);
  const double cpu_before_s = bench::own_cpu_seconds();
  for (const auto& member : members) member->ask();
  while (crowd.under_way != 0) turn();
  const double busy =
      (bench::own_cpu_seconds() - cpu_before_s) /
      std::chrono::duration<double>(crowd.heard - crowd.begin + std::chrono::milliseconds(options.warm_up)).count();
  if (crowd.latencies_us.empty())
    fail("no get ended within " + std::to_string(options.runtime) + " ms; give a longer --runtime");

  std::string each;
  for (const auto& member : members) each += (each.empty() ? "" : ", ") + std::to_string(member->blocks());
  const uint64_t blocks = crowd.latencies_us.size() * options.batch;
  const bench::Calls calls{std::move(crowd.latencies_us), static_cast<double>(options.runtime) / 1e3, blocks, options.bs};
  bench::print_document(calls, ", \"slowest_us\": " + std::to_string(crowd.slowest_us) +
                                   ", \"core_busy\": " + std::to_string(busy) + ", \"blocks_each\": [" + each + "]");
  return 0;
}
