// policies.h — the policies that there are, by their names.
#pragma once

#include <memory>
#include <string_view>

#include "base/status.h"
#include "store/reclaim/policy.h"

namespace halfstep::store {

// Invalid, naming those that there are, for any other name.
Fault make_policy(std::string_view name, const PolicySetup& setup, std::unique_ptr<ReclaimPolicy>* out);

}  // namespace halfstep::store
