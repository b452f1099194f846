#include "store/durable/header_io.h"

#include <algorithm>
#include <cstring>
#include <iterator>

#include "base/check.h"
#include "store/format/mutant.h"

namespace halfstep::store {
namespace {

constexpr uint64_t kRestateUs = 1'000'000;
// Of one turn: 0.2 ms.
constexpr size_t kHashBytes = 32 * KiB;
// Changes that go to media together. Each is tried on a copy of all names.
constexpr size_t kChangesAtOnce = 16;

// The copy to overwrite first: the one that is damaged or older, so that a cut in between leaves the better one whole.
uint32_t worse_copy(const Status (&status)[2], const HeaderState (&copies)[2]) noexcept {
  return status[0].ok() && (!status[1].ok() || copies[1].fixed.sequence < copies[0].fixed.sequence) ? 1 : 0;
}

}  // namespace

Status write_header_now(io::Engine& engine, HeaderState& state, uint32_t* bad_copies, bool* flush_failed,
                        uint64_t* bytes_written) {
  BlockingIo io(engine);
  HeaderState copies[2];
  Status seen[2];
  PageBuffer buffer(kHeaderReservePages);
  for (uint32_t copy = 0; copy < 2; ++copy)
    seen[copy] = read_header_copy(io, state.places().header(copy), buffer, &copies[copy]);
  const uint32_t first = worse_copy(seen, copies);
  ++state.fixed.sequence;
  std::vector<std::byte> encoded;
  if (const Status status = encode_header(state, &encoded); !status.ok()) return status;
  PageBuffer image(static_cast<uint32_t>(encoded.size() / kPageBytes));
  std::memcpy(image.bytes().data(), encoded.data(), encoded.size());
  Status last;
  *bad_copies = 0;
  for (const uint32_t copy : {first, 1 - first}) {
    Status status = io.write(state.places().header(copy), image.bytes());
    if (bytes_written != nullptr) *bytes_written += image.bytes().size();
    if (status.ok()) {
      status = io.flush();
      if (!status.ok() && flush_failed != nullptr) *flush_failed = true;
    }
    if (status.ok()) continue;
    last = status;
    ++*bad_copies;
  }
  return *bad_copies < 2 ? Status() : last;
}

HeaderWriter::HeaderWriter(io::Engine& engine, Flusher& flusher, const Clock& clock, const HeaderState& current,
                           HeaderKeeper::Seat& seat, std::function<void(const HeaderState&)> adopt)
    : engine_(engine),
      flusher_(flusher),
      clock_(clock),
      current_(current),
      seat_(seat),
      adopt_(std::move(adopt)),
      image_(kHeaderReservePages),
      seen_(2 * kHeaderReservePages) {
  flush_.owner = this;
  flush_.done = [](FlushWaiter& waiter, Status status) { static_cast<HeaderWriter*>(waiter.owner)->copy_written(status); };
}

void HeaderWriter::submit(std::function<Status(HeaderState&)> change, std::function<void(Status)> done) {
  if (lost_) return done(Code::Closed);
  queue_.push_back({std::move(change), std::move(done), {}});
}

void HeaderWriter::turn() {
  if (seat_.called()) take_news();
  if (restates() && clock_.now_us() >= restate_at_us_) {
    submit([](HeaderState&) { return Status(); }, [](Status) {});
  }
  if (step_ == Step::Hashing) hash_some();
  if (step_ == Step::Telling && seat_.all_know()) finish(told_);
  if (step_ == Step::Idle && !queue_.empty() && seat_.take_pen()) begin();
}

void HeaderWriter::take_news() {
  if (const HeaderKeeper::Snapshot next = seat_.news(); next != nullptr) adopt_(*next);
  if (lost_ || !seat_.lost()) return;
  lost_ = true;
  give_up();
}

// Nobody turns any more: what is under way ends with its request.
void HeaderWriter::give_up() {
  if (step_ == Step::Telling || step_ == Step::Hashing) finish(Code::Closed);
  std::vector<Change> given_up = std::move(queue_);
  queue_.clear();
  for (Change& change : given_up) change.done(Code::Closed);
}

void HeaderWriter::begin() {
  take_news();  // of who had the pen before
  const auto last = queue_.begin() + static_cast<ptrdiff_t>(std::min(queue_.size(), kChangesAtOnce));
  running_.assign(std::make_move_iterator(queue_.begin()), std::make_move_iterator(last));
  queue_.erase(queue_.begin(), last);
  if (lost_) return finish(Code::Closed);
  step_ = Step::Checking;
  outstanding_ = 2;
  for (uint32_t copy = 0; copy < 2; ++copy) {
    io::Request& request = requests_[copy];
    request.op = io::Op::Read;
    request.offset = current_.places().header(copy);
    request.data = seen_.page(copy * kHeaderReservePages).data();
    request.bytes = format::kHeaderReserveBytes;
    request.owner = this;
    request.complete = on_request;
    engine_.submit(request);
  }
}

void HeaderWriter::on_request(io::Request& request) {
  auto* self = static_cast<HeaderWriter*>(request.owner);
  if (--self->outstanding_ > 0) return;
  if (self->step_ == Step::Checking) return self->checked();
  if (request.error != 0 || self->lost_) return self->copy_written({Code::IoError, request.error});
  self->step_ = self->step_ == Step::WritingFirst ? Step::FlushingFirst : Step::FlushingSecond;
  self->flusher_.want(self->flush_);
}

bool HeaderWriter::both_as_written() const noexcept {
  if (requests_[0].error != 0 || requests_[1].error != 0) return false;
  const std::byte* first = seen_.bytes().data();
  const std::byte* second = first + format::kHeaderReserveBytes;
  const auto seen = load_le<format::StoreHeader>(first);
  const format::StoreHeader& ours = current_.fixed;
  return seen.magic == format::kHeaderMagic && seen.checksum == ours.checksum && seen.header_bytes == ours.header_bytes &&
         seen.sequence == ours.sequence && seen.start_number == ours.start_number &&
         std::memcmp(first, second, ours.header_bytes) == 0;
}

void HeaderWriter::checked() {
  if (both_as_written()) {
    first_copy_ = 0;
    return apply();
  }
  HeaderState copies[2];
  Status status[2];
  for (uint32_t copy = 0; copy < 2; ++copy) {
    const Bytes bytes = seen_.bytes().subspan(size_t{copy} * format::kHeaderReserveBytes, format::kHeaderReserveBytes);
    status[copy] = requests_[copy].error != 0 ? Status(Code::IoError) : decode_header(bytes, &copies[copy]);
    // A damaged copy is no proof of another owner; a whole one (of a newer version, too) is, unless it is one of an earlier
    // start that could not be overwritten.
    if (!status[copy].ok() && !(status[copy] == Code::Unsupported)) continue;
    const format::StoreHeader& seen = copies[copy].fixed;
    const format::StoreHeader& ours = current_.fixed;
    if (seen.store_uuid != ours.store_uuid || seen.start_number == ours.start_number) continue;
    if (seen.start_number > ours.start_number || seen.sequence >= ours.sequence) lost_ = true;
  }
  if (lost_) {
    seat_.lose();
    finish(Code::Closed);
    return give_up();
  }
  first_copy_ = worse_copy(status, copies);
  apply();
}

void HeaderWriter::apply() {
  next_ = current_;
  ++next_.fixed.sequence;
  for (Change& change : running_) {
    HeaderState tried = next_;
    change.status = change.apply(tried);
    if (change.status.ok() && header_bytes(tried) > format::kHeaderReserveBytes) change.status = Code::NoSpace;
    if (change.status.ok()) next_ = std::move(tried);
  }
  if (const Status encoded = begin_encode(next_, &encoded_); !encoded.ok()) return finish(encoded);
  hash_ = {};
  hashed_bytes_ = 0;
  step_ = Step::Hashing;
  hash_some();
}

void HeaderWriter::hash_some() {
  const size_t bytes = std::min<size_t>(kHashBytes, next_.fixed.header_bytes - hashed_bytes_);
  hash_.absorb(ConstBytes(encoded_).subspan(hashed_bytes_, bytes));
  hashed_bytes_ += bytes;
  if (hashed_bytes_ < next_.fixed.header_bytes) return;
  seal_encoded(hash_.finish(), next_, &encoded_);
  std::memcpy(image_.bytes().data(), encoded_.data(), encoded_.size());
  copies_good_ = 0;
  step_ = Step::WritingFirst;
  write_copy(first_copy_);
}

void HeaderWriter::write_copy(uint32_t copy) {
  outstanding_ = 1;
  failures_before_ = flusher_.failures();
  io::Request& request = requests_[copy];
  request.op = io::Op::Write;
  request.offset = current_.places().header(copy);
  request.data = image_.bytes().data();
  request.bytes = static_cast<uint32_t>(encoded_.size());
  HALFSTEP_CHECK(request.bytes <= format::kHeaderReserveBytes, request.bytes);
  bytes_written_ += request.bytes;
  engine_.submit(request);
}

void HeaderWriter::copy_written(Status status) {
  if (lost_) return finish(Code::Closed);
  if (status.ok() && flusher_.failures() == failures_before_) ++copies_good_;
  if (step_ == Step::WritingFirst || step_ == Step::FlushingFirst) {
    step_ = Step::WritingSecond;
    return write_copy(1 - first_copy_);
  }
  // One good copy is the change on media; the other one is rewritten with the next change.
  if (copies_good_ > 0) {
    seat_.set_names_uncertain(false);
    return tell(std::move(next_), {});
  }
  // Either copy may hold the change all the same: its numbers are not given out again.
  seat_.set_names_uncertain(true);
  restate_ = true;
  restate_at_us_ = clock_.now_us() + kRestateUs;
  HeaderState same = current_;
  same.fixed.sequence = next_.fixed.sequence;
  same.fixed.next_scope = next_.fixed.next_scope;
  same.fixed.next_namespace = next_.fixed.next_namespace;
  tell(std::move(same), status.ok() ? Status(Code::IoError) : status);
}

void HeaderWriter::tell(HeaderState next, Status status) {
  seat_.publish(std::move(next));
  step_ = Step::Telling;
  told_ = status;
  take_news();
  if (seat_.all_know()) finish(status);
}

void HeaderWriter::finish(Status status) {
  step_ = Step::Idle;
  seat_.give_pen();
  std::vector<Change> finished = std::move(running_);
  running_.clear();
  for (Change& change : finished) change.done(change.status.ok() ? status : change.status);
}

}  // namespace halfstep::store
