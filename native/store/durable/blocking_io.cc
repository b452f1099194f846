#include "store/durable/blocking_io.h"

#include "store/durable/patience.h"
#include "store/format/page.h"

namespace halfstep::store {

const io::Request& BlockingIo::add(io::Op op, uint64_t offset, std::byte* data, size_t bytes) {
  if (ran_) {
    requests_.clear();
    ran_ = false;
  }
  io::Request& request = requests_.emplace_back();
  request.op = op;
  request.offset = offset;
  request.data = data;
  request.bytes = static_cast<uint32_t>(bytes);
  request.owner = this;
  request.complete = [](io::Request& done) { --static_cast<BlockingIo*>(done.owner)->left_; };
  return request;
}

Status BlockingIo::read_patiently(uint64_t offset, Bytes into, Patience& patience) {
  Unanswered place;
  while (true) {
    const Status status = read(offset, into);
    if (status.ok()) return status;
    if (place.since_us != 0) {
      PageBuffer page(1);
      for (const uint64_t witness : patience.witnesses()) (void)read(witness, page.bytes());
    }
    if (!patience.wait(place)) return status;
  }
}

Status BlockingIo::run() {
  left_ = requests_.size();
  for (io::Request& request : requests_) engine_.submit(request);
  engine_.flush_submissions();
  while (left_ > 0) {
    engine_.wait();
    engine_.poll();
    engine_.flush_submissions();
  }
  ran_ = true;
  for (const io::Request& request : requests_) {
    if (request.error != 0) return {Code::IoError, request.error};
  }
  return {};
}

}  // namespace halfstep::store
