// The os layer's one check of a setting, with its one error text.
#pragma once

#include <cstdint>
#include <string>

#include "everlong/base/status.h"

namespace everlong::os {

// Return kInvalidArgument with the setting's name and both numbers, unless value >= least.
inline Status AtLeast(const char* name, int64_t value, int64_t least) {
  if (value >= least) return OkStatus();
  return InvalidArgumentError(std::string(name) + " is " + std::to_string(value) + ", expected at least " +
                              std::to_string(least));
}

}  // namespace everlong::os
