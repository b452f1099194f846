// world_names.cc — namespaces and layouts of a run: what was acknowledged must be there after any crash, what was deleted must
// not, and no scope number means two things.
#include <algorithm>

#include "sim/world.h"

namespace halfstep::sim {

void World::create_namespace(uint32_t number) {
  Space& space = spaces_[number];
  if (space.there == Known::Yes || space.creating || space.deleting || process_->store->has_namespace(space.name)) return;
  space.there = Known::Maybe;
  space.creating = true;
  process_->store->create_namespace(
      {.name = space.name, .default_ttl_s = sliding_ttl_s(number), .sliding_ttl = true}, [this, number](Status status) {
        if (dead()) return;
        note(static_cast<uint64_t>(status.code()));
        spaces_[number].creating = false;
        if (status.ok()) {
          spaces_[number].there = Known::Yes;
          register_layouts(number, false);
        } else if (!failures_possible()) {
          model_.fail(Rule::WrongAnswer, "create namespace: " + std::string(code_name(status.code())));
        }
      });
}

void World::delete_namespace(uint32_t number) {
  Space& space = spaces_[number];
  if (space.there != Known::Yes || space.deleting) return;
  space.deleting = true;
  for (Key& key : model_.keys()) {
    if (key.name_space == number) key.must = false;
  }
  process_->store->delete_namespace(space.name, [this, number](Status status) {
    if (dead()) return;
    note(static_cast<uint64_t>(status.code()));
    Space& deleted = spaces_[number];
    deleted.deleting = false;
    if (status.ok()) {
      deleted.there = Known::No;
      process_->scopes_died = true;
      return retire_scopes(number);
    }
    deleted.there = Known::Maybe;  // after a restart either
    for (Key& key : model_.keys()) {
      if (key.name_space == number) key.must = false;
    }
    if (!failures_possible()) model_.fail(Rule::WrongAnswer, "delete namespace: " + std::string(code_name(status.code())));
  });
}

void World::retire_scopes(uint32_t number) {
  for (uint32_t& scope : spaces_[number].scopes) {
    if (scope != 0) retired_scopes_.push_back(scope);
    scope = 0;
  }
  for (Key& key : model_.keys()) {
    if (key.name_space != number || key.scope == 0) continue;
    ghosts_.push_back(key.index_key);
    model_.set_scope(key, 0, {});
  }
}

// `certain`: it was acknowledged before, so that the answer has to come at once, and to be the same.
void World::register_layouts(uint32_t number, bool certain) {
  for (uint32_t layout = 0; layout < history_.profile.layouts; ++layout) {
    const uint32_t before = spaces_[number].scopes[layout];
    auto answered = std::make_shared<bool>(false);
    process_->store->register_layout(spaces_[number].name, layout_number(layout),
                                     [this, number, layout, answered, certain](Status status, uint32_t scope) {
                                       *answered = true;
                                       if (!dead()) layout_answered(number, layout, status, scope, certain);
                                     });
    if (certain && before != 0 && !*answered) {
      model_.fail(Rule::NamesLost, "namespace " + std::to_string(number) + " does not know layout " + std::to_string(layout));
    }
  }
}

void World::layout_answered(uint32_t number, uint32_t layout, Status status, uint32_t scope, bool certain) {
  note(static_cast<uint64_t>(status.code()) << 32 | scope);
  Space& space = spaces_[number];
  if (!status.ok()) {
    if (!failures_possible() && !space.deleting && space.there != Known::No) {
      model_.fail(Rule::WrongAnswer, "register layout: " + std::string(code_name(status.code())));
    }
    return;
  }
  if (std::find(retired_scopes_.begin(), retired_scopes_.end(), scope) != retired_scopes_.end()) {
    return model_.fail(Rule::DeadScope, "scope " + std::to_string(scope) + " is given out again");
  }
  for (const Space& other : spaces_) {
    for (uint32_t at = 0; at < kLayoutsMax; ++at) {
      if (other.scopes[at] == scope && (&other != &space || at != layout)) {
        return model_.fail(Rule::NamesLost, "scope " + std::to_string(scope) + " means two things");
      }
    }
  }
  uint32_t& known = space.scopes[layout];
  if (certain && known != 0 && known != scope) {
    return model_.fail(Rule::NamesLost, "scope " + std::to_string(known) + " became " + std::to_string(scope));
  }
  if (known != 0 && known != scope) retired_scopes_.push_back(known);
  known = scope;
  for (Key& key : model_.keys()) {
    if (key.name_space != number || key.layout != layout || key.scope == scope) continue;
    if (key.scope != 0) ghosts_.push_back(key.index_key);
    const store::BlockName name{scope, key.component(), as_bytes(key.name)};
    model_.set_scope(key, scope, process_->store->key_of(name));
  }
}

void World::reopen_namespaces() {
  for (uint32_t number = 0; number < spaces_.size(); ++number) {
    Space& space = spaces_[number];
    const bool certain = space.there != Known::Maybe && !space.deleting;
    const bool there = process_->store->has_namespace(space.name);
    // What is persisted after a delete that failed says that the namespace is there.
    const bool relied_upon = !space.deleting && std::ranges::any_of(model_.keys(), [number](const Key& key) {
      return key.name_space == number && key.must;
    });
    if (!there && relied_upon) {
      return model_.fail(Rule::PersistLost, "namespace " + std::to_string(number) + " is gone, with what was persisted in it");
    }
    if (certain && there != (space.there == Known::Yes)) {
      return model_.fail(there ? Rule::DeadScope : Rule::NamesLost,
                         "namespace " + std::to_string(number) + (there ? " was deleted and is back" : " is gone"));
    }
    space.there = there ? Known::Yes : Known::No;
    space.creating = space.deleting = false;
    if (there) {
      register_layouts(number, certain);
    } else {
      retire_scopes(number);
    }
  }
}

}  // namespace halfstep::sim
