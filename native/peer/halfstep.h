/* halfstep.h — the client core's C interface (libhalfstep). No interpreter, no io_uring, no exceptions.
 *
 * One primitive: hs_submit() hands a batch to a queue and returns a ticket; hs_queue_poll() yields events; exactly one terminal
 * event comes per ticket, and after it nothing writes to the ticket's memory any more: the fence (docs/client-contract.md).
 * Results are written into arrays that the caller gives with the batch. All but HS_OK is a miss to an engine, and then the
 * target's bytes are undefined.
 *
 * Threads: any thread may call anything on any object, and any number of them may wait on one queue. hs_client_end() and
 * hs_queue_end() may be called beside whoever uses the object; a handle may be closed only when nobody else uses it. Queues
 * outlive their client's handle.
 * Fork: a child sees an inherited client as closed: hs_client_forked() is 1, hs_submit() answers 0, polls are empty, and the
 * tickets of the parent never end there. Closing an inherited client or queue frees nothing and returns at once. Open a new
 * one. Exit: a process may end without closing anything: the client's thread is stopped first, and open tickets do not end.
 */
#ifndef HALFSTEP_H
#define HALFSTEP_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

#define HS_API_VERSION 1

typedef struct hs_client hs_client;
typedef struct hs_queue hs_queue;
typedef struct hs_region hs_region;
typedef uint64_t hs_ticket; /* 0 = none */

/* Answers and reasons: the numbers of docs/wire-protocol.md. */
enum hs_answer_code {
  HS_PENDING = 0,
  HS_OK = 1,
  HS_MISS = 2,
  HS_LATE = 3,
  HS_CANCELLED = 4,
  HS_THROTTLED = 5,
  HS_REJECTED = 6,
  HS_UNAVAILABLE = 7
};
typedef struct hs_answer {
  uint8_t answer; /* enum hs_answer_code */
  uint8_t zero;
  uint16_t reason;
} hs_answer;

/* ---- Client ---- */

typedef struct hs_options {
  uint32_t struct_bytes;       /* sizeof(hs_options) */
  const char* address;         /* "host:port", or "unix:/path": shared memory with a daemon of this machine */
  const char* name_space;      /* "default" */
  uint32_t connections;        /* data connections per shard, 1-16; 0 = 1 */
  uint32_t connect_timeout_ms; /* of one attempt; 0 = 1000 */
  uint32_t backoff_ms_min;     /* 0 = 50 */
  uint32_t backoff_ms_max;     /* 0 = 2000 */
  uint32_t tickets_max;        /* in flight over all queues; a submit beyond ends throttled(queue full); 0 = 4096 */
  uint64_t codecs;             /* bit c: codec c is spoken, besides raw (docs/compression.md). Blocks of a layout that names it
                                * are coded by put and decoded by get; without it such blocks of others are misses. Parts
                                * that a lossy codec refuses are bfx's where its bit is set too, else raw */
  const char* transport;       /* over TCP: "auto" (the same as null), "tcp", or "rdma", which refuses to do without */
  const char* coding;          /* whether blocks of such layouts are coded: "always", "auto" (the same as null): unless a get of
                                * them would take longer by it, as far as that was measured, or "never" */
} hs_options;

/* 0; -1 with a sentence in `why` for options that cannot be (bad address); -2 for what may be there later (out of descriptors,
 * of threads). Does not wait for the daemon. */
int hs_client_open(const hs_options* options, hs_client** out, char* why, size_t why_bytes);
/* Cancels what is in flight (terminal events are delivered first), fences, disconnects. Whoever waits, for the client or for
 * one of its queues, returns. May be called more than once. */
void hs_client_end(hs_client* client);
/* The same, and the handle is gone. */
void hs_client_close(hs_client* client);
/* 1 when every shard is reached and layouts are registered, 0 after timeout_ms, -1 when the daemon refused it for good
 * (unknown namespace, version) or the client was closed: `why` says it. */
int hs_client_wait_ready(hs_client* client, uint32_t timeout_ms, char* why, size_t why_bytes);
int hs_client_forked(const hs_client* client);

typedef struct hs_client_facts {
  uint32_t connected;   /* connections that are up now, and heard */
  uint32_t connections; /* that there should be, over all shards that are known */
  uint32_t handshakes;  /* since open */
  uint8_t store_uuid[16];
  uint8_t boot_id[16];
  uint32_t block_bytes_max;
  uint32_t keys_max;
  uint32_t queue_depth; /* of all shards, as of the last Final of each */
  uint32_t queue_us;    /* of the one with the longest wait */
  uint64_t bytes_per_s; /* of all shards */
  uint64_t bytes_received, bytes_sent;
  uint64_t checksum_failures; /* parts that arrived and did not verify */
  uint64_t decode_failures;   /* coded parts that arrived, verified, and did not decode to the bytes they were made of */
  char transport[16];         /* "tcp", "rdma" (all are), "shm", "unix" (its rings were refused), "" while not connected */
  char congestion[16];
  char last_error[256];   /* why it is not connected, or not through shared memory */
  char rdma[256];         /* why a connection has no rings; "" where all have, or none was wanted */
  uint64_t rdma_failures; /* paths over RDMA that could not be made, or died */
  /* What the newest choice knew whether to code a block: bytes a second, 0 = not yet, and the ratio times 1,000. */
  uint64_t encode_bytes_per_s, unit_decode_bytes_per_s, link_bytes_per_s, service_bytes_per_s;
  uint32_t coding_ratio_milli;
  uint64_t coding_blocks[11]; /* blocks of puts by why they were coded, or not: hs_coding_reason_name() of each */
  char gpu[256];              /* CUDA devices in use: "cuda:0 (NVIDIA H100 80GB HBM3, driver 12.4)"; "" while there is none */
  char gpu_error[256];        /* the newest failure of a copy, in the driver's words */
  uint32_t gpu_slots, gpu_slots_used; /* of 256 KiB pinned memory each, that there are, and that are in use */
  uint64_t gpu_slot_waits;            /* times that bytes, or a put, had to wait for one */
  uint64_t gpu_copies, gpu_bytes_to_device, gpu_bytes_to_host, gpu_failures;
  uint64_t not_waited; /* requests that should have waited, to daemons that do not know how: answered at once */
  /* What the namespace says, as of the last greeting: the policy of clients without one of their own (0 none, 1 exact, 2 high,
   * 3 balanced, 4 compact, 5 off; others: none that this build knows), and the coarsest step of a lossy block, in 1/10,000:
   * 0 any, 1 none (docs/compression.md, *A namespace's default and floor*). */
  uint32_t namespace_policy, namespace_step_limit;
  uint64_t placed_bytes;     /* written by daemons into regions, and verified there */
  uint64_t gpu_placed_bytes; /* into those on CUDA devices, where nobody verifies them */
  uint64_t placing_keys;     /* of regions, each good for one request: where the device has memory windows */
  char placement[256];       /* why a region was not written into, the newest reason; "" while there is none */
} hs_client_facts;
/* "" from the number on where there is no further one. The first five are coded. */
const char* hs_coding_reason_name(uint32_t reason);
void hs_client_get_facts(hs_client* client, hs_client_facts* out);

/* How busy a shard is, as of its last Final; zeros before. */
typedef struct hs_shard_load {
  uint32_t queue_depth; /* requests that it has admitted and not finished */
  uint32_t queue_us;    /* how long the next one would wait */
  uint64_t bytes_per_s; /* what it served in the last second that had work */
} hs_shard_load;
/* Writes those of the first `max` shards, by number; returns how many shards there are, 0 while nobody has told. */
size_t hs_client_get_loads(hs_client* client, hs_shard_load* out, size_t max);

/* Registers a layout by its canonical bytes (docs/wire-protocol.md, *Names*); it is registered again on every reconnection.
 * Returns a handle >= 0 of this client (the same for the same bytes), or -1 when the bytes are not canonical. A layout that the
 * daemon refuses makes its items rejected with the daemon's reason, policy if it gives none. */
int hs_layout_register(hs_client* client, const void* canonical, size_t bytes);

/* ---- Memory that daemons write and read ---- */

/* Memory whose owner gives it away from hs_submit() to the terminal event: over RDMA daemons write what is got straight into
 * it, and it is checked there; what is put they read straight out of it. What a get names of it may change at any time in
 * between, and nothing of it is right before the answer says so; what a put names must not change. A get or put of which all
 * targets of a section lie in regions uses them; where there is no RDMA, or not enough memory may be pinned, bytes travel as
 * they do without (hs_client_facts.placement). After the deadline or a cancel the terminal
 * event waits until the daemon has stopped, or until its connection has ended: 200 ms at most. With RDMA the memory is pinned,
 * and a forked child may have none of it.
 * `cuda_device`: as of a section. Of the memory of a GPU gets alone are placed, and what is placed there is verified by nobody
 * but the daemon (hs_section.unchecked). 0; -1 with a sentence in `why`: too many regions, a closed client, or no such device.
 */
int hs_region_open(hs_client* client, void* base, size_t bytes, uint32_t cuda_device, hs_region** out, char* why,
                   size_t why_bytes);
/* Returns when no batch uses it any more, and it is deregistered: the memory may go. Cancel what uses it first. */
void hs_region_close(hs_region* region);

/* ---- Queues and tickets ---- */

/* Without a client (null) nothing can be submitted to it, but threads may wait for a nudge or its end. */
int hs_queue_open(hs_client* client, hs_queue** out);
/* It takes no more batches. Its tickets are cancelled, and fenced when this returns: their terminal events may be polled.
 * Whoever waits on it returns. May be called more than once. */
void hs_queue_end(hs_queue* queue);
int hs_queue_ended(const hs_queue* queue); /* 1 once it, or its client, was ended */
void hs_queue_close(hs_queue* queue);      /* ended first; then the handle is gone */
int hs_queue_descriptor(hs_queue* queue);  /* eventfd: readable when poll has events; -errno when there is none left */
/* 1: it is readable in any case, for events that the caller took and keeps; 0: no longer. */
void hs_queue_keep(hs_queue* queue, int kept);

/* PROGRESS only for batches that ask for it (wants_progress): each wakes the waiter. */
enum hs_event_kind { HS_EVENT_PROGRESS = 1, HS_EVENT_DONE = 2 };
typedef struct hs_event {
  hs_ticket ticket;
  uint32_t kind;
  uint32_t steps_done; /* get, layer-major, where the group's shape or the ranges fix the parts: how many of the selected parts,
                        * from the first on, are complete over all items; items that failed are answered before and count as
                        * complete. Else: items answered. */
  uint64_t user_data;  /* of the batch */
  uint32_t items_ok;   /* DONE only */
  uint32_t zero;
} hs_event;
/* Never waits: up to `max` events; progress is coalesced, one per ticket. */
size_t hs_queue_poll(hs_queue* queue, hs_event* events, size_t max);
/* Waits for at least one event; 0 after timeout_us (UINT64_MAX = for ever), after a nudge, and at once when the queue has ended
 * and all its events were taken. While it waits this thread may do the client's work: what it waits for is then received and
 * checked here. A queue whose descriptor was asked for leaves that to the client's own thread. */
size_t hs_queue_wait(hs_queue* queue, hs_event* events, size_t max, uint64_t timeout_us);
/* Every thread that waits on the queue returns. One that looks first whether it has to wait asks for the number of nudges
 * before it looks, and waits unless there was another one since. */
void hs_queue_nudge(hs_queue* queue);
uint64_t hs_queue_nudges(const hs_queue* queue);
size_t hs_queue_wait_unless(hs_queue* queue, hs_event* events, size_t max, uint64_t timeout_us, uint64_t nudges);

enum hs_operation {
  HS_OP_MATCH = 1,
  HS_OP_GET = 2,
  HS_OP_PUT = 3,
  HS_OP_DELETE = 4,
  HS_OP_RELEASE = 5,
  HS_OP_LIST = 6,
  HS_OP_STAT = 7,
  HS_OP_NAMESPACE_CREATE = 8,
  HS_OP_NAMESPACE_DELETE = 9,
  HS_OP_TOUCH = 10,
  HS_OP_HOLD = 11,
  HS_OP_RENEW = 12,
  HS_OP_EXPIRE = 13,
  HS_OP_CLEAR = 14,
  HS_OP_NAMESPACE_LIMIT = 15,
  HS_OP_EXPLAIN = 16,
  HS_OP_PREFETCH = 17 /* ok: in the daemon's memory; a ticket may be left alone, or cancelled */
};
enum hs_order { HS_KEY_MAJOR = 0, HS_LAYER_MAJOR = 1 };
enum hs_durability { HS_CACHE = 0, HS_PERSIST = 1 };

typedef struct hs_range {
  uint32_t start, count, stride; /* parts start, start + stride, ...; no part twice in a section */
} hs_range;

typedef struct hs_iovec {
  void* base;
  size_t bytes;
} hs_iovec;

/* How one part of a row lies in memory: inner_count pieces of inner_bytes, inner_stride apart, from
 * base + offset + row * row_stride. */
typedef struct hs_part_descriptor {
  void* base;
  uint64_t base_bytes; /* bounds: a row that leaves [base, base + base_bytes) is refused before anything is sent */
  uint64_t offset;
  int64_t row_stride;
  uint32_t inner_count;
  uint32_t inner_bytes;
  int64_t inner_stride;
} hs_part_descriptor;

enum hs_target_kind { HS_TARGET_NONE = 0, HS_TARGET_IOVEC = 1, HS_TARGET_ROWS = 2 };

typedef struct hs_section {
  int layout;               /* of hs_layout_register */
  uint32_t first_component; /* component_count cells from here: all of one group and variant */
  uint32_t component_count; /* 0 = 1 */
  uint32_t flags;           /* HS_STOP_AT_MISS */
  uint32_t key_count;
  uint32_t keys_bytes;
  const uint8_t* keys;    /* packed: length byte 1-255, bytes; copied by hs_submit */
  const hs_range* ranges; /* get alone */
  uint32_t range_count;

  /* get: where bytes go; put: where they come from. Items are key-major: key * component_count + component. */
  uint32_t target_kind;
  const hs_iovec* iovecs;          /* iovec: all items' pieces one after the other; copied */
  const uint32_t* iovec_counts;    /* per item; null = one each. Pieces may ignore part borders, but must hold the item's bytes:
                                    * get: at least those of the block (of the selected parts, back to back, in the order of the
                                    * ranges); put: exactly. Where the group's shape fixes the length, less is refused here;
                                    * where it does not, a longer block is miss(length) and nothing of it lands. */
  const hs_part_descriptor* parts; /* rows: one per part of the block, in its order, also those that no range selects; copied.
                                    * inner_count * inner_bytes = the part's bytes (at least those of a last, shorter one). */
  uint32_t part_descriptor_count;
  const int64_t* rows; /* rows: one per item; copied */

  /* get, put: 0 = host memory; n + 1 = the addresses above are of the memory of CUDA device n, of one for all such sections of
   * a batch. Bytes go through pinned memory of the library's own and are copied by a stream of its own. */
  uint32_t cuda_device;

  /* put */
  const uint32_t* block_bytes; /* per item */
  const uint64_t* parents;     /* per item or null = unknown; the ordinal of a key of this section, or HS_PARENT_... */
  const uint16_t* depths;      /* per item or null */
  uint32_t ttl_s;
  uint8_t hint;

  /* Out: must stay valid until the terminal event. Null where not wanted. hs_submit() sets all answers to HS_PENDING and all
   * lengths and bounds to 0; each is then written once, before the event that counts it, by another thread: read those that an
   * event has told of. */
  hs_answer* answers;  /* per item; with ranges: per item and selected part */
  uint32_t* lengths;   /* per item: block bytes (match with wants_lengths, get), 0 = not there */
  float* error_bounds; /* get, per item: half the largest step of its lossy parts that were asked for, in the values' own unit:
                        * no value is off by more, and its own rounding (docs/quantiser.md); 0 = all of them are exact */
  uint32_t* unchecked; /* get, per item: its parts that a card wrote straight into a region on a CUDA device. The daemon
                        * verified them before it sent them; nobody did after. 0 = the client verified all */
} hs_section;
#define HS_STOP_AT_MISS 1u /* match, get: keys after the first miss may be answered miss(skipped) */
#define HS_PARENT_ROOT UINT64_MAX
#define HS_PARENT_UNKNOWN (UINT64_MAX - 1)

/* One entry of `list`, one counter of `stat` (with several shards a name comes once per shard), or the answer to `explain`:
 * called on the thread that receives, the client's own or one that waits, before the terminal event; what it is shown dies with
 * the call. It must not wait, nor call into this library. */
typedef void (*hs_text_sink)(void* context, const void* record, size_t record_bytes, const void* name, size_t name_bytes);

typedef struct hs_batch {
  uint32_t struct_bytes; /* sizeof(hs_batch) */
  uint32_t operation;
  uint32_t deadline_us; /* from hs_submit; 0 = the default: 2 s, match 20 ms */
  uint8_t order;
  uint8_t durability;
  uint8_t priority;
  uint8_t wants_lengths;
  uint64_t hold_owner; /* match: 0 = none; hold, renew: whose; release: whose holds, of the sections' keys or, without
                        * sections, all */
  uint32_t hold_ms;    /* match: > 0 exactly when there is an owner */
  uint32_t section_count;
  const hs_section* sections;
  uint64_t user_data;

  /* list: cursor in (0 starts), next cursor out through `cursor_out` (0 = the end); the sink gets EntryRecord (40 bytes, see
   * docs/wire-protocol.md) and engine key. stat: the sink gets a u64 and a name. namespace: name in `text`, quota in `value`,
   * and the two below it. hold, renew: milliseconds in `value`, 0 = without end, which is for persistent holds alone. expire:
   * seconds in `value`, 0 = never. prefetch: in `value`, for how many milliseconds a block is kept for its first get. touch:
   * leaf first, root last. clear: the layout's id in `layout_id`, 16 bytes. explain: the value of a KeyQuestion (see
   * docs/wire-protocol.md) in `question`; the sink gets no record, and a JSON text as name.
   */
  uint64_t cursor;
  uint64_t* cursor_out;
  uint32_t limit;          /* list: entries at most; 0 = the daemon's choice */
  uint32_t wants_progress; /* 1: PROGRESS events, too */
  const char* text;
  uint64_t value;
  uint64_t pin_budget_bytes;
  uint32_t default_ttl_s; /* 0 = none */
  uint32_t sliding_ttl;   /* 1 = default_ttl_s counts from a block's last use */
  uint32_t sets_coding;   /* namespace: 1 = the two below are meant; 0: create none and any, limit as it was */
  uint16_t policy;        /* as hs_client_facts has them */
  uint16_t step_limit;
  uint32_t persistent;    /* hold: 1 = survives a restart, in the namespace's pin budget */
  uint32_t wait;          /* match, get: 1 = what is not there is waited for, until the deadline; a daemon that does not know
                           * how answers at once (not_waited) */
  uint32_t prefetch_kind; /* prefetch: 0 not said, 1 window, 2 layers, 3 turn, 4 named; the daemon counts by it */
  uint32_t follow;        /* prefetch: 1 = keys that find no room wait until earlier ones were got, and are not throttled */
  const uint8_t* layout_id;
  const uint8_t* question;
  uint64_t question_bytes;
  /* With sections on a CUDA device: what these CUstreams have under way by hs_submit comes before the batch touches that
   * memory, and before a daemon is asked; 0 and 1 are the legacy default stream, 2 the thread's own. None: the memory is ready.
   */
  const uint64_t* streams;
  uint32_t stream_count;
  hs_text_sink sink;
  void* sink_context;
  hs_answer*
      outcome; /* of the whole request where it has no items (list, stat, explain, namespace, clear, renew, release all) */
} hs_batch;

/* Always returns a ticket, whose terminal event comes whatever happens. 0 only for a batch that breaks a rule of this header
 * or for which memory is short (`why` says which), or a forked/closed client. Copies everything but targets and outputs.
 * What a put reads and a get writes is touched until the terminal event only; when it is due while bytes of a put are still
 * on their way into the socket, the event waits for them, at most 10 ms, and then for the connection's end. */
hs_ticket hs_submit(hs_queue* queue, const hs_batch* batch, char* why, size_t why_bytes);
/* Asks; the terminal event still comes, and items that were complete stay ok. */
void hs_cancel(hs_queue* queue, hs_ticket ticket);

/* ---- Names, without a client ---- */

uint32_t hs_component(uint32_t group, uint32_t variant, uint32_t cell);
const char* hs_answer_name(uint8_t answer);
const char* hs_reason_name(uint16_t reason);
/* 1: the driver of CUDA is there and knows a device's memory; 0: it is not, and why. */
int hs_gpu_reachable(char* why, size_t why_bytes);
/* "0.1.0 (asan)" */
const char* hs_version(void);

#ifdef __cplusplus
}
#endif
#endif
