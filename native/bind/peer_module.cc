// peer_module.cc — halfstep._peer: the client core for Python, as thin as it can be. halfstep.client is the face for people.
#include <nanobind/nanobind.h>
#include <nanobind/stl/pair.h>
#include <nanobind/stl/string.h>
#include <nanobind/stl/tuple.h>
#include <nanobind/stl/vector.h>

#include "base/build_info.h"
#include "bind/peer_batch.h"
#include "bind/peer_compress.h"
#include "bind/peer_core.h"
#include "bind/peer_memory.h"
#include "bind/peer_queue.h"
#include "peer/halfstep.h"

namespace nb = nanobind;
using nb::literals::operator""_a;
using halfstep::bind::Batch;
using halfstep::bind::bind_compress;
using halfstep::bind::Core;
using halfstep::bind::Lacking;
using halfstep::bind::Memory;
using halfstep::bind::Options;
using halfstep::bind::Queue;
using halfstep::bind::Refused;
using halfstep::bind::Region;
using halfstep::bind::Template;

namespace {

template <size_t N>
std::string text_of(const char (&field)[N]) {
  return std::string(field, strnlen(field, N));
}

nb::bytes bytes_of(const uint8_t (&field)[16]) { return nb::bytes(reinterpret_cast<const char*>(field), sizeof(field)); }

nb::dict facts_of(const Core& core) {
  const hs_client_facts facts = core.facts();
  nb::dict dict;
  dict["connected"] = facts.connected;
  dict["connections"] = facts.connections;
  dict["handshakes"] = facts.handshakes;
  dict["store_uuid"] = bytes_of(facts.store_uuid);
  dict["boot_id"] = bytes_of(facts.boot_id);
  dict["block_bytes_max"] = facts.block_bytes_max;
  dict["keys_max"] = facts.keys_max;
  nb::list loads;
  for (const hs_shard_load& load : core.loads())
    loads.append(nb::make_tuple(load.queue_depth, load.queue_us, load.bytes_per_s));
  dict["shards"] = nb::tuple(loads);
  dict["queue_depth"] = facts.queue_depth;
  dict["queue_us"] = facts.queue_us;
  dict["bytes_per_s"] = facts.bytes_per_s;
  dict["bytes_received"] = facts.bytes_received;
  dict["bytes_sent"] = facts.bytes_sent;
  dict["checksum_failures"] = facts.checksum_failures;
  dict["decode_failures"] = facts.decode_failures;
  dict["transport"] = text_of(facts.transport);
  dict["congestion"] = text_of(facts.congestion);
  dict["last_error"] = text_of(facts.last_error);
  dict["rdma"] = text_of(facts.rdma);
  dict["rdma_failures"] = facts.rdma_failures;
  nb::dict coding;
  coding["encode_bytes_per_s"] = facts.encode_bytes_per_s;
  coding["decode_bytes_per_s"] = facts.unit_decode_bytes_per_s;
  coding["link_bytes_per_s"] = facts.link_bytes_per_s;
  coding["service_bytes_per_s"] = facts.service_bytes_per_s;
  coding["ratio"] = facts.coding_ratio_milli / 1000.0;
  nb::dict blocks;
  for (uint32_t i = 0; *hs_coding_reason_name(i) != 0; ++i) blocks[hs_coding_reason_name(i)] = facts.coding_blocks[i];
  coding["blocks"] = blocks;
  dict["coding"] = coding;
  dict["not_waited"] = facts.not_waited;
  dict["placed_bytes"] = facts.placed_bytes;
  dict["placing_keys"] = facts.placing_keys;
  dict["placement"] = text_of(facts.placement);
  dict["namespace_policy"] = facts.namespace_policy;
  dict["namespace_step_limit"] = facts.namespace_step_limit;
  nb::dict gpu;
  gpu["devices"] = text_of(facts.gpu);
  gpu["error"] = text_of(facts.gpu_error);
  gpu["slots"] = facts.gpu_slots;
  gpu["slots_used"] = facts.gpu_slots_used;
  gpu["slot_waits"] = facts.gpu_slot_waits;
  gpu["copies"] = facts.gpu_copies;
  gpu["bytes_to_device"] = facts.gpu_bytes_to_device;
  gpu["bytes_to_host"] = facts.gpu_bytes_to_host;
  gpu["failures"] = facts.gpu_failures;
  gpu["placed_bytes"] = facts.gpu_placed_bytes;
  dict["gpu"] = gpu;
  return dict;
}

nb::dict build_info() {
  nb::dict dict;
  dict["version"] = std::string(halfstep::kVersion);
  dict["build"] = std::string(halfstep::kBuildType);
  dict["commit"] = std::string(halfstep::kCommit);
  return dict;
}

void bind_memory(nb::module_& m) {
  nb::class_<Region>(m, "Region", "Memory that is kept for many batches.")
      .def(nb::init<nb::handle, bool, bool>(), "buffer"_a.none(), "writable"_a, "direct"_a = false)
      .def(
          "refuse", [](Region& region) { region.refuses = true; }, "Let no further batch use it.")
      .def("close", &Region::close, "Release the memory. Refused while a batch uses it.")
      .def_prop_ro("address", &Region::address)
      .def_prop_ro("bytes", &Region::bytes)
      .def_prop_ro("uses", [](const Region& region) { return region.uses; })
      .def_prop_ro("closed", [](const Region& region) { return !region.memory; });
  nb::class_<Template>(m, "Template", "Where the parts of a row lie: one descriptor per part of a block.")
      .def(nb::init<>())
      .def(
          "add",
          [](Template& self, nb::object region, uint64_t offset, int64_t row_stride, uint32_t inner_count, uint32_t inner_bytes,
             int64_t inner_stride) {
            if (!nb::isinstance<Region>(region)) throw Refused("template: every part needs a Region");
            self.add(std::move(region), offset, row_stride, inner_count, inner_bytes, inner_stride);
          },
          "region"_a, "offset"_a, "row_stride"_a, "inner_count"_a, "inner_bytes"_a, "inner_stride"_a)
      .def_prop_ro("block_bytes", &Template::block_bytes)
      .def("__len__", [](const Template& self) { return self.parts.size(); });
}

PyType_Slot batch_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&Batch::traverse)}, {0, nullptr}};
PyType_Slot queue_slots[] = {{Py_tp_traverse, reinterpret_cast<void*>(&Queue::traverse)},
                             {Py_tp_clear, reinterpret_cast<void*>(&Queue::clear)},
                             {0, nullptr}};

void bind_batch(nb::module_& m) {
  nb::class_<Batch>(m, "Batch", nb::type_slots(batch_slots),
                    "What one submit carries, and the memory that it keeps until its terminal event.")
      .def(nb::init<uint32_t>(), "operation"_a)
      .def("set_keys", &Batch::set_keys, "layout"_a, "keys"_a.none(), "first_component"_a, "component_count"_a,
           "stop_at_miss"_a)
      .def("set_target", &Batch::set_target, "target"_a.none())
      .def("set_source", &Batch::set_source, "source"_a.none(), "block_bytes"_a.none())
      .def(
          "set_rows",
          [](Batch& self, nb::object rows_template, nb::handle rows, bool is_source, nb::handle block_bytes) {
            if (!nb::isinstance<Template>(rows_template)) throw Refused("rows: the template is none");
            self.set_rows(std::move(rows_template), rows, is_source, block_bytes);
          },
          "template"_a, "rows"_a, "is_source"_a, "block_bytes"_a.none())
      .def("set_addresses", &Batch::set_addresses, "regions"_a, "addresses"_a, "lengths"_a, "is_source"_a)
      .def("set_offer", &Batch::set_offer, "parents"_a.none(), "depths"_a.none(), "ttl_s"_a, "hint"_a)
      .def("set_ranges", &Batch::set_ranges, "ranges"_a)
      .def("set_outputs", &Batch::set_outputs, "lengths"_a)
      .def("next_section", &Batch::next_section, "Begin the next section: what is set from here on is its own.")
      .def("set_options", &Batch::set_options, "deadline_us"_a, "order"_a, "durability"_a, "priority"_a, "wants_progress"_a)
      .def("set_get", &Batch::set_get, "layout"_a, "keys"_a.none(), "first_component"_a, "component_count"_a, "stop_at_miss"_a,
           "ranges"_a, "target"_a.none(), "in_rows"_a, "deadline_us"_a, "order"_a, "priority"_a, "wants_progress"_a)
      .def("set_hold", &Batch::set_hold, "owner"_a, "ms"_a)
      .def("set_list", &Batch::set_list, "cursor"_a, "limit"_a)
      .def("set_question", &Batch::set_question, "question"_a)
      .def("set_namespace", &Batch::set_namespace, "name"_a, "quota_bytes"_a, "pin_budget_bytes"_a, "default_ttl_s"_a,
           "sliding_ttl"_a)
      .def("set_coding", &Batch::set_coding, "policy"_a, "step_limit"_a)
      .def("set_life", &Batch::set_life, "value"_a, "persistent"_a)
      .def("set_prefetch", &Batch::set_prefetch, "keep_ms"_a, "follow"_a, "kind"_a)
      .def("set_wait", &Batch::set_wait, "What is not there is waited for.")
      .def("set_streams", &Batch::set_streams, "streams"_a, "Streams whose work comes before memory of a GPU is touched.")
      .def("set_layout_id", &Batch::set_layout_id, "id"_a)
      .def_prop_ro("ok", &Batch::ok, nb::for_getter(nb::sig("def ok(self) -> bytearray")))
      .def_prop_ro("answers", &Batch::answers)
      .def_prop_ro("lengths", &Batch::lengths)
      .def_prop_ro("error_bounds", &Batch::error_bounds)
      .def_prop_ro("unchecked", &Batch::unchecked)
      .def_prop_ro("packed_keys", &Batch::packed_keys)
      .def_prop_ro("item_count", &Batch::item_count)
      .def_prop_ro("submitted", &Batch::submitted)
      .def_prop_ro("done", &Batch::done)
      .def_prop_ro("over", &Batch::over)
      .def_prop_ro("ticket", &Batch::ticket)
      .def_prop_ro("steps_done", &Batch::steps_done)
      .def_prop_ro("items_ok", &Batch::items_ok)
      .def_prop_ro("cursor", &Batch::cursor)
      .def_prop_ro("outcome", [](const Batch& self) { return std::make_pair(self.outcome().answer, self.outcome().reason); })
      .def_prop_ro("records", &Batch::records, nb::for_getter(nb::sig("def records(self) -> list[tuple[bytes, bytes]]")));
}

void bind_core(nb::module_& m) {
  nb::class_<Core>(m, "Core", "A client core: its threads, connections and layouts.")
      .def(
          "__init__",
          [](Core* self, std::string address, std::string name_space, uint32_t connections, uint32_t tickets_max,
             uint64_t codecs, std::string transport, std::string coding) {
            new (self) Core(Options{.address = std::move(address),
                                    .name_space = std::move(name_space),
                                    .connections = connections,
                                    .tickets_max = tickets_max,
                                    .codecs = codecs,
                                    .transport = std::move(transport),
                                    .coding = std::move(coding)});
          },
          "address"_a, "name_space"_a, "connections"_a, "tickets_max"_a, "codecs"_a = 0, "transport"_a = "auto",
          "coding"_a = "auto")
      .def("close", &Core::close)
      .def("abandon", &Core::abandon)
      .def("register_layout", &Core::register_layout, "canonical"_a)
      .def("wait_ready", &Core::wait_ready, "timeout_s"_a)
      .def("facts", &facts_of, nb::sig("def facts(self) -> dict[str, typing.Any]"))
      .def_prop_ro("forked", &Core::forked)
      .def_prop_ro("closed", &Core::closed);
}

template <typename Expected>
void check_is(nb::handle object, const char* sentence) {
  if (!nb::isinstance<Expected>(object)) throw Refused(sentence);
}

void bind_queue(nb::module_& m) {
  nb::class_<Queue>(m, "Queue", nb::type_slots(queue_slots), "Where batches are submitted to and their events come from.")
      .def(nb::init<nb::object>(), "event"_a)
      .def(
          "submit",
          [](Queue& self, nb::object batch, nb::object owner, nb::object core) {
            check_is<Batch>(batch, "submit: needs a Batch");
            check_is<Core>(core, "submit: needs a Core");
            self.submit(std::move(batch), std::move(owner), std::move(core));
          },
          "batch"_a, "owner"_a.none(), "core"_a)
      .def(
          "run",
          [](Queue& self, nb::object batch, nb::object core) {
            check_is<Batch>(batch, "run: needs a Batch");
            check_is<Core>(core, "run: needs a Core");
            self.run(std::move(batch), std::move(core));
          },
          "batch"_a, "core"_a)
      .def(
          "post",
          [](Queue& self, nb::object batch, nb::object owner) {
            check_is<Batch>(batch, "post: needs a Batch");
            self.post(std::move(batch), std::move(owner));
          },
          "batch"_a, "owner"_a)
      .def("poll", &Queue::poll)
      .def("wait", &Queue::wait, "until"_a.none(), nb::sig("def wait(self, until: float | None) -> bool"))
      .def("wait_for", &Queue::wait_for, "batch"_a, "until"_a.none(),
           nb::sig("def wait_for(self, batch: Batch, until: float | None) -> bool"))
      .def("serve", &Queue::serve)
      .def("take", &Queue::take, nb::sig("def take(self) -> list[typing.Any]"))
      .def_prop_ro("next_over", &Queue::next_over, nb::for_getter(nb::sig("def next_over(self) -> typing.Any")))
      .def("called", &Queue::called, "owner"_a)
      .def("cancel", &Queue::cancel, "batch"_a)
      .def(
          "descriptor",
          [](Queue& self, nb::object core) {
            if (!core.is_none()) check_is<Core>(core, "descriptor: needs a Core");
            return self.descriptor(std::move(core));
          },
          "core"_a.none(), nb::sig("def descriptor(self, core: Core | None) -> int"))
      .def_prop_ro("closed", &Queue::closed)
      .def_prop_ro("in_flight", &Queue::in_flight)
      .def_prop_ro("inside", &Queue::inside)
      .def_prop_ro("inherited", &Queue::inherited)
      .def("take_inherited", &Queue::take_inherited)
      .def("close", &Queue::close)
      .def("abandon", &Queue::abandon);
}

// An error of ours is the one that callers know, wherever it is found.
template <typename Error>
void raise_as(const char* name) {
  // Never released: the translator may run until the interpreter has ended.
  PyObject* type = nb::object(nb::module_::import_("halfstep.errors").attr(name)).release().ptr();
  nb::register_exception_translator(
      [](const std::exception_ptr& raised, void* of) {
        try {
          std::rethrow_exception(raised);
        } catch (const Error& error) {
          PyErr_SetString(static_cast<PyObject*>(of), error.what());
        }
      },
      type);
}

}  // namespace

NB_MODULE(_peer, m) {
  m.doc() = "The client core of Halfstep. Use halfstep.connect().";
  // A process that ends without close() has not leaked anything that its end does not release.
  nb::set_leak_warnings(false);
  raise_as<Refused>("ConfigError");
  raise_as<Lacking>("Unavailable");
  bind_memory(m);
  bind_batch(m);
  bind_core(m);
  bind_queue(m);
  bind_compress(m);
  m.def("build_info", &build_info, nb::sig("def build_info() -> dict[str, str]"));
  m.def("component", &hs_component, "group"_a, "variant"_a, "cell"_a);
  m.def("answer_name", &hs_answer_name, "answer"_a);
  m.def("reason_name", &hs_reason_name, "reason"_a);
}
