// abi.h — what this program uses of the binary interface of libibverbs.so.1, declared by ourselves (docs/adr/0019).
// The library's symbols (IBVERBS_1.1, and one of 1.11) and these structures have not changed since 2006: whoever adds a field
// adds a structure. Posting, polling and arming are no symbols: the header's inline functions call through the table of
// operations in the context, so its layout belongs to the interface too. Only as much of a structure is declared as is read or
// written here; those that the library makes (contexts, queue pairs, ...) are used by pointer alone.
// Invariants: abi_test.cc compares every size, offset and number with infiniband/verbs.h where that is installed.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>

namespace halfstep::rdma::abi {

struct Device;
struct Pd;
struct SharedReceiveQueue;
struct Cq;
struct Qp;
struct SendRequest;
struct ReceiveRequest;
struct Completion;
struct MemoryWindow;

// struct ibv_context_ops: of its 32 entries the six that are called.
struct ContextOps {
  std::array<void*, 7> before_windows{};
  MemoryWindow* (*alloc_mw)(Pd*, int type);
  void* bind_mw{};
  int (*dealloc_mw)(MemoryWindow*);
  void* before_poll{};
  int (*poll_cq)(Cq*, int count, Completion*);
  int (*req_notify_cq)(Cq*, int solicited_only);
  std::array<void*, 12> before_post{};
  int (*post_send)(Qp*, SendRequest*, SendRequest** bad);
  int (*post_recv)(Qp*, ReceiveRequest*, ReceiveRequest** bad);
  std::array<void*, 5> rest{};
};

struct Context {  // its head
  Device* device{};
  ContextOps ops{};
  int cmd_fd{};
  int async_fd{};
};

struct Pd {  // its head
  Context* context{};
  uint32_t handle{};
};

struct MemoryRegion {
  Context* context{};
  Pd* pd{};
  void* addr{};
  size_t length{};
  uint32_t handle{};
  uint32_t lkey{};
  uint32_t rkey{};
};

inline constexpr int kWindowType2 = 2;
// Whoever binds it says its next key, and writes that down here.
struct MemoryWindow {
  Context* context{};
  Pd* pd{};
  uint32_t rkey{};
  uint32_t handle{};
  int type{};
};

struct CompletionChannel {
  Context* context{};
  int fd{};
  int refcnt{};
};

struct Cq {  // its head
  Context* context{};
  CompletionChannel* channel{};
  void* cq_context{};
};

struct Qp {  // its head
  Context* context{};
  void* qp_context{};
  Pd* pd{};
  Cq* send_cq{};
  Cq* recv_cq{};
  SharedReceiveQueue* srq{};
  uint32_t handle{};
  uint32_t qp_num{};
};

using Gid = std::array<std::byte, 16>;

inline constexpr uint32_t kGidRoceV2 = 2;
struct GidEntry {
  alignas(8) Gid gid{};
  uint32_t gid_index{};
  uint32_t port_num{};
  uint32_t gid_type{};
  uint32_t ndev_ifindex{};
};

inline constexpr int kPortActive = 4;
// What ibv_query_port() itself fills in: the header's inline variant knows a field more.
struct PortAttributes {
  int state{};
  int max_mtu{};
  int active_mtu{};
  int gid_tbl_len{};
  uint32_t port_cap_flags{};
  uint32_t max_msg_sz{};
  uint32_t bad_pkey_cntr{};
  uint32_t qkey_viol_cntr{};
  uint16_t pkey_tbl_len{};
  uint16_t lid{};
  uint16_t sm_lid{};
  std::array<uint8_t, 8> link_widths{};
  uint8_t link_layer{};
  uint8_t flags{};
  uint16_t port_cap_flags2{};
};

// Of device_cap_flags: windows of type 2, which belong to the queue pair that binds them; 2A looks at its number alone, 2B at
// the protection domain, too.
inline constexpr unsigned kDeviceWindows2A = 1U << 23;
inline constexpr unsigned kDeviceWindows2B = 1U << 24;
struct DeviceAttributes {
  std::array<char, 64> fw_ver{};
  uint64_t node_guid{};
  uint64_t sys_image_guid{};
  uint64_t max_mr_size{};
  uint64_t page_size_cap{};
  uint32_t vendor_id{};
  uint32_t vendor_part_id{};
  uint32_t hw_ver{};
  int max_qp{};
  int max_qp_wr{};
  unsigned device_cap_flags{};
  int max_sge{};
  std::array<int, 5> objects{};  // max_sge_rd to max_pd
  int max_qp_rd_atom{};          // reads of one queue pair that it answers at once
  std::array<int, 2> ends{};
  int max_qp_init_rd_atom{};  // that one has out at once
  std::array<int, 16> rest{};
  uint16_t max_pkeys{};
  uint8_t local_ca_ack_delay{};
  uint8_t phys_port_cnt{};
};

inline constexpr int kAccessLocalWrite = 1;
inline constexpr int kAccessRemoteWrite = 2;
inline constexpr int kAccessRemoteRead = 4;
inline constexpr int kAccessWindowBind = 16;  // of a region: windows may be bound to it

struct QpCapacity {
  uint32_t max_send_wr{};
  uint32_t max_recv_wr{};
  uint32_t max_send_sge{};
  uint32_t max_recv_sge{};
  uint32_t max_inline_data{};
};

inline constexpr int kQpReliable = 2;  // IBV_QPT_RC
struct QpInit {
  void* qp_context{};
  Cq* send_cq{};
  Cq* recv_cq{};
  SharedReceiveQueue* srq{};
  QpCapacity cap{};
  int qp_type{};
  int sq_sig_all{};
};

struct GlobalRoute {
  alignas(8) Gid dgid{};
  uint32_t flow_label{};
  uint8_t sgid_index{};
  uint8_t hop_limit{};
  uint8_t traffic_class{};
};

struct AddressVector {
  GlobalRoute grh{};
  uint16_t dlid{};
  uint8_t sl{};
  uint8_t src_path_bits{};
  uint8_t static_rate{};
  uint8_t is_global{};
  uint8_t port_num{};
};

enum class QpState : int { Reset = 0, Init = 1, ReadyToReceive = 2, ReadyToSend = 3, Error = 6 };

inline constexpr int kQpState = 1 << 0;
inline constexpr int kQpAccessFlags = 1 << 3;
inline constexpr int kQpPkeyIndex = 1 << 4;
inline constexpr int kQpPort = 1 << 5;
inline constexpr int kQpAddress = 1 << 7;
inline constexpr int kQpPathMtu = 1 << 8;
inline constexpr int kQpTimeout = 1 << 9;
inline constexpr int kQpRetryCount = 1 << 10;
inline constexpr int kQpRnrRetry = 1 << 11;
inline constexpr int kQpReceivePsn = 1 << 12;
inline constexpr int kQpReadsOut = 1 << 13;  // IBV_QP_MAX_QP_RD_ATOMIC
inline constexpr int kQpRnrTimer = 1 << 15;
inline constexpr int kQpSendPsn = 1 << 16;
inline constexpr int kQpReadsIn = 1 << 17;  // IBV_QP_MAX_DEST_RD_ATOMIC
inline constexpr int kQpDestination = 1 << 20;

struct QpAttributes {
  QpState qp_state{};
  QpState cur_qp_state{};
  int path_mtu{};
  int path_mig_state{};
  uint32_t qkey{};
  uint32_t rq_psn{};
  uint32_t sq_psn{};
  uint32_t dest_qp_num{};
  unsigned qp_access_flags{};
  QpCapacity cap{};
  AddressVector ah_attr{};
  AddressVector alt_ah_attr{};
  uint16_t pkey_index{};
  uint16_t alt_pkey_index{};
  uint8_t en_sqd_async_notify{};
  uint8_t sq_draining{};
  uint8_t max_rd_atomic{};
  uint8_t max_dest_rd_atomic{};
  uint8_t min_rnr_timer{};
  uint8_t port_num{};
  uint8_t timeout{};
  uint8_t retry_cnt{};
  uint8_t rnr_retry{};
  uint8_t alt_port_num{};
  uint8_t alt_timeout{};
  uint32_t rate_limit{};
};

struct Piece {  // struct ibv_sge
  uint64_t addr{};
  uint32_t length{};
  uint32_t lkey{};
};

inline constexpr int kWrite = 0;           // IBV_WR_RDMA_WRITE
inline constexpr int kWriteImmediate = 1;  // IBV_WR_RDMA_WRITE_WITH_IMM
inline constexpr int kRead = 4;            // IBV_WR_RDMA_READ
inline constexpr int kInvalidate = 7;      // IBV_WR_LOCAL_INV
inline constexpr int kBindWindow = 8;      // IBV_WR_BIND_MW
inline constexpr unsigned kSignaled = 2;

struct SendRequest {
  uint64_t wr_id{};
  SendRequest* next{};
  Piece* sg_list{};
  int num_sge{};
  int opcode{};
  unsigned send_flags{};
  uint32_t imm_data{};  // in network byte order; of kInvalidate the key
  uint64_t remote_addr{};
  uint32_t rkey{};
  // For atomics and datagrams.
  std::array<uint64_t, 3> unused{};
  struct Bind {
    MemoryWindow* window{};
    uint32_t key{};  // that it has from then on
    MemoryRegion* region{};
    uint64_t address{};
    uint64_t bytes{};
    unsigned access{};
  } bind{};
};

struct ReceiveRequest {
  uint64_t wr_id{};
  ReceiveRequest* next{};
  Piece* sg_list{};
  int num_sge{};
};

inline constexpr int kStatusSuccess = 0;
inline constexpr int kStatusLengthError = 1;
inline constexpr int kStatusProtectionError = 4;
inline constexpr int kStatusFlushed = 5;
inline constexpr int kStatusRemoteInvalid = 9;
inline constexpr int kStatusRemoteAccess = 10;
inline constexpr int kStatusRetryExceeded = 12;
inline constexpr int kStatusRnrExceeded = 13;

inline constexpr int kCompletedWrite = 1;               // IBV_WC_RDMA_WRITE
inline constexpr int kCompletedRead = 2;                // IBV_WC_RDMA_READ
inline constexpr int kCompletedBind = 5;                // IBV_WC_BIND_MW
inline constexpr int kCompletedInvalidate = 6;          // IBV_WC_LOCAL_INV
inline constexpr int kReceived = 128;                   // IBV_WC_RECV, a bit
inline constexpr int kReceivedWithImmediate = 128 + 1;  // IBV_WC_RECV_RDMA_WITH_IMM

struct Completion {
  uint64_t wr_id{};
  int status{};
  int opcode{};  // undefined, as all but wr_id and qp_num, unless status is success
  uint32_t vendor_err{};
  uint32_t byte_len{};
  uint32_t imm_data{};  // in network byte order
  uint32_t qp_num{};
  uint32_t src_qp{};
  unsigned wc_flags{};
  uint16_t pkey_index{};
  uint16_t slid{};
  uint8_t sl{};
  uint8_t dlid_path_bits{};
};

}  // namespace halfstep::rdma::abi
