// request_asked.h — a request about keys of a store that asks elsewhere first (asks_first.h): it waits for the answer, and then
// begins as if it had come now, with what is left of its deadline. In the latencies of its command the wait is a sample of its
// own. Invariant: it is found by its id, cancelled and late as any request, while it waits. Thread: the shard's.
#pragma once

#include <cstdint>
#include <vector>

#include "shard/asks_first.h"
#include "shard/pool.h"
#include "shard/request.h"
#include "wire/records.h"

namespace halfstep::shard {

struct RequestPools;

class AskedRequest final : public Request {
 public:
  explicit AskedRequest(RequestPools& pools) noexcept : pools_(pools) {}
  void start(AsksFirst& store, Client& client, wire::Opcode opcode, uint64_t id, ConstBytes body);
  void end(wire::AnswerReason with) override;

 private:
  static void on_answered(Question& question);
  void begin_command();
  void forget() noexcept;
  void on_drop() override { forget(); }
  void recycle() override;

  RequestPools& pools_;
  AsksFirst* store_ = nullptr;  // while it has the question
  std::vector<std::byte> body_;
  wire::RequestView view_;
  std::vector<store::BlockName> names_;
  std::vector<store::IndexKey> keys_;
  Question question_;
};

}  // namespace halfstep::shard
