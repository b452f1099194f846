// pair_bench.cc — the least that a block server and its client can be: what a daemon is measured against.
// Usage: halfstep_pair_bench [--rw get|put] [--bs N] [--batch N] [--iodepth N] [--connections N] [--size N] [--check 0|1]
//                            [--runtime MS] [--congestion NAME] [--server-core N] [--client-core N] [--seed N] [--look 0|1]
//                            [--rate N]
// One JSON document on stdout; bench/minimal.py reads it.
//
// Two processes over TCP on loopback, one thread each, on epoll. A request names a batch of blocks by number; a get is answered
// with their bytes from one table in memory, a put brings them and is answered with a word. Nothing else: no names, no index,
// no flash, no deadlines, no credit, no errors but the end of the process. With --check 1 whoever receives runs CRC32C over
// every byte, as Halfstep does, piece by piece while it is in the cache, and compares each block with what it has to be: a get
// with what the block was when it was made, a put with the sum that follows each block, which nobody but the client can have
// made; --check 0 leaves both away.
// Who waits looks first, as Halfstep's loops do and as long as they (--look 0: sleeps at once).
// With --rate so many calls a second are due at moments with exponential gaps, over one connection, and a latency counts from
// when its call was due, as in call_loop.h: what this machine's own pauses do to the simplest client of the simplest server.
#include <netinet/in.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <string>
#include <vector>

#include "base/crc.h"
#include "base/prng.h"
#include "pair_client.h"
#include "pair_server.h"
#include "pair_stream.h"
#include "program.h"

namespace halfstep::bench::pair {
namespace {

constexpr uint64_t kRateMax = 1'000'000;

Options options_of(int count, char** arguments) {
  Options options;
  std::string rw = "get";
  const Number numbers[] = {
      {"--bs", &options.bs},
      {"--batch", &options.batch},
      {"--iodepth", &options.iodepth},
      {"--connections", &options.connections},
      {"--size", &options.size},
      {"--check", &options.check},
      {"--runtime", &options.runtime},
      {"--seed", &options.seed},
      {"--look", &options.look},
      {"--rate", &options.rate},
      {"--server-core", &options.server_core},
      {"--client-core", &options.client_core},
  };
  const Text texts[] = {{"--rw", &rw}, {"--congestion", &options.congestion}};
  read_options(count, arguments, numbers, texts);
  options.put = rw == "put";
  if ((rw != "get" && !options.put) || options.bs < 1 || options.bs > (uint64_t{64} << 20) || options.batch < 1 ||
      options.batch > kBatchMax || options.iodepth < 1 || options.iodepth > 64 || options.connections < 1 ||
      options.connections > 64 || options.size > (uint64_t{64} << 30) || options.runtime < 1) {
    fail("out of bounds: rw get or put, bs to 64 MiB, batch to 1024, iodepth and connections to 64, size to 64 GiB");
  }
  if (options.rate > kRateMax || (options.rate > 0 && (options.put || options.connections > 1))) {
    fail("out of bounds: rate to 1000000, of gets over one connection");
  }
  options.size = std::max(options.size / options.bs, options.batch) * options.bs;
  return options;
}

int run(const Options& options) {
  const Bytes table = mapped(options.size);
  Prng(options.seed).fill(table);
  std::vector<uint32_t> expected;
  for (uint64_t at = 0; at < table.size(); at += options.bs) expected.push_back(crc32c(table.subspan(at, options.bs)));

  const int listener = tcp_socket(options);
  sockaddr_in address{};
  address.sin_family = AF_INET;
  address.sin_addr.s_addr = htonl(INADDR_LOOPBACK);
  socklen_t length = sizeof address;
  if (::bind(listener, reinterpret_cast<const sockaddr*>(&address), length) != 0 || ::listen(listener, 64) != 0 ||
      ::getsockname(listener, reinterpret_cast<sockaddr*>(&address), &length) != 0) {
    fail_errno("listen");
  }
  const pid_t server = ::fork();
  if (server < 0) fail_errno("fork");
  if (server == 0) {
    pin(options.server_core);
    // A put writes: into memory of its own, whose pages are there.
    const Bytes own = options.put ? mapped(options.size) : table;
    Server(options, own, expected, listener).run();
    ::_exit(0);
  }
  ::close(listener);
  pin(options.client_core);
  const double cpu_before = own_cpu_seconds();
  Client client(options, table, expected, address);
  const LoopTime time = client.run();
  const double of_client = own_cpu_seconds() - cpu_before;
  client.close();
  int status = 0;
  rusage of_server{};
  if (::wait4(server, &status, 0, &of_server) < 0 || status != 0) fail("the server failed");
  const double gib = static_cast<double>(time.ever * options.batch * options.bs) / static_cast<double>(1 << 30);
  const std::string rate = options.rate == 0 ? std::string("null")
                                             : "{\"calls_due\": " + std::to_string(time.due) +
                                                   ", \"calls_begun_in_time\": " + std::to_string(time.begun) + "}";
  print_document({client.take_latencies_us(), time.seconds, time.made * options.batch, options.bs},
                 ", \"rate\": " + rate + ", \"cpu_s_per_gib\": {\"server\": " + std::to_string(cpu_seconds(of_server) / gib) +
                     ", \"client\": " + std::to_string(of_client / gib) + "}");
  return 0;
}

}  // namespace
}  // namespace halfstep::bench::pair

int main(int count, char** arguments) {
  return halfstep::bench::pair::run(halfstep::bench::pair::options_of(count, arguments));
}
