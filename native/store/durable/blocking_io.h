// blocking_io.h — reads and writes that wait, for format(), open() and close() alone.
// Invariants: run() returns only when everything that was added has completed.
// Thread: the shard's, outside its loop.
#pragma once

#include <deque>

#include "base/bytes.h"
#include "base/status.h"
#include "io/engine.h"

namespace halfstep::store {

class Patience;

class BlockingIo {
 public:
  explicit BlockingIo(io::Engine& engine) : engine_(engine) {}

  // Memory and offset page-aligned; returns the request, whose error says how it went after run().
  const io::Request& add_read(uint64_t offset, Bytes into) { return add(io::Op::Read, offset, into.data(), into.size()); }
  const io::Request& add_write(uint64_t offset, ConstBytes from) {
    return add(io::Op::Write, offset, const_cast<std::byte*>(from.data()), from.size());  // the engine only reads it
  }
  // Ok, or the first error. What was added is forgotten by the next add.
  Status run();

  Status read(uint64_t offset, Bytes into) {
    add_read(offset, into);
    return run();
  }
  // Asks again as long as patience has it, and meanwhile looks whether anything can be read.
  Status read_patiently(uint64_t offset, Bytes into, Patience& patience);
  Status write(uint64_t offset, ConstBytes from) {
    add_write(offset, from);
    return run();
  }
  Status flush() {
    add(io::Op::Flush, 0, nullptr, 0);
    return run();
  }

 private:
  const io::Request& add(io::Op op, uint64_t offset, std::byte* data, size_t bytes);

  io::Engine& engine_;
  std::deque<io::Request> requests_;
  size_t left_ = 0;
  bool ran_ = false;
};

}  // namespace halfstep::store
