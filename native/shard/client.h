// client.h — the client of a connection as its requests see it: who it is, what it may have of the shard's memory, and where
// answers to it go. Connection (connection.h) is one.
// Invariant: requests know a client as long as its connection is open, and are dropped when it closes (Request::drop).
// Thread: the shard's.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "base/bytes.h"
#include "net/send_queue.h"
#include "net/transport.h"
#include "shard/credit.h"
#include "wire/layout.h"
#include "wire/message.h"

namespace halfstep::shard {

class Placement;
class PutRequest;
class Request;
class RequestHost;

// Of a client that names none. It cannot be deleted: every such client would be locked out.
inline constexpr std::string_view kNamespaceDefault = "default";

// Codec numbers that a mask of codecs can name (HelloClient, HelloServer).
inline constexpr uint32_t kCodecs = 64;

class Client {
 public:
  // A layout that it has registered; its place among handles() is what sections name it by.
  struct Handle {
    uint32_t scope = 0;
    wire::LayoutId layout{};
  };
  static constexpr size_t kHandlesMax = 1024;

  Client(const Client&) = delete;
  Client& operator=(const Client&) = delete;

  RequestHost& host() const noexcept { return host_; }
  bool admin() const noexcept { return admin_; }
  uint64_t codecs() const noexcept { return codecs_; }
  std::string_view name_space() const noexcept { return namespace_; }
  // An owner of holds as the store knows it: within the namespace, so that no other can name it.
  uint64_t owner_of(uint64_t owner) const noexcept;
  std::vector<Handle>& handles() noexcept { return handles_; }

  Credit& get_credit() noexcept { return get_credit_; }
  Credit& put_credit() noexcept { return put_credit_; }
  // Some was given back: those who wait go on at the end of the turn.
  virtual void credit_returned() = 0;
  // Of the memory of requests: what those of this client have (request_memory.h).
  uint64_t& request_bytes() noexcept { return request_bytes_; }
  // Of them, those of requests that have waited for blocks (key_waiters.h).
  uint64_t& wait_bytes() noexcept { return wait_bytes_; }
  // Bytes of puts that came before the first Want of each.
  uint64_t& early_bytes() noexcept { return early_bytes_; }
  // Payload of a put has landed where it was granted.
  virtual void note_landed(uint64_t bytes) noexcept = 0;
  // What is still to land of this put's Chunk is not wanted any more.
  virtual void divert_landing(const PutRequest& put) = 0;

  virtual void send(ConstBytes frames) = 0;
  // One Chunk: `head` is copied, `payload` stays as it is until released(owner, tag).
  virtual void send_chunk(ConstBytes head, std::span<const ConstBytes> payload, net::Released released, void* owner,
                          uint64_t tag) = 0;
  // Memory of its own that its gets may be written into; null: it has told of none.
  virtual Placement* placement() noexcept = 0;
  // The same, for one that tells of some; null: this connection has no way to do that.
  virtual Placement* make_placement() = 0;
  // Writes `payload` there, before whatever is sent from here on; it stays as it is until released(owner, tag), which never
  // comes from here. False: nothing was written, and it has to be sent.
  virtual bool place(std::span<const ConstBytes> payload, std::span<const net::RemoteRun> runs, net::Released released,
                     void* owner, uint64_t tag) = 0;
  // Where the other shards are, for who came this way.
  virtual void write_shard_map(wire::FrameWriter& frame) const = 0;

  // A request begins, has had its Final, and is referred to by nothing any more.
  virtual void enrol(Request& request) = 0;
  virtual void request_finished(Request& request) noexcept = 0;
  virtual void strike(Request& request) noexcept = 0;
  // In flight; null: none has this id.
  virtual Request* find(uint64_t id) const noexcept = 0;
  // Of the request whose frame is being shown: its go_on() is called at this client's turns, and no frame is shown before it
  // has no more to do, or has finished.
  virtual void leave_work(Request& request) noexcept = 0;
  // So long was worked for it outside of its turns: counts as if it had been one.
  virtual void charge(uint64_t us) = 0;
  // It has, or may have, a chunk to send.
  virtual void offer_chunks(Request& request) = 0;

 protected:
  Client(RequestHost& host, bool admin) : host_(host), admin_(admin) {}
  ~Client() = default;

  std::string namespace_;
  uint64_t codecs_ = 0;
  Credit get_credit_;
  Credit put_credit_;
  uint64_t request_bytes_ = 0;

 private:
  RequestHost& host_;
  std::vector<Handle> handles_;
  uint64_t wait_bytes_ = 0;
  uint64_t early_bytes_ = 0;
  const bool admin_;
};

}  // namespace halfstep::shard
