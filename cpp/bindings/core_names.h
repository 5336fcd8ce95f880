// Values of the core by the names that Python gives them. An unknown name is one ValueError: what it is, what is known.
#pragma once

#include <cstddef>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "everlong/base/role.h"
#include "everlong/index/index_part.h"

namespace everlong::bindings {

// Return the place of a name among the known ones.
size_t PlaceOf(const char* argument, const std::string& name, const std::vector<std::string_view>& known);

// Return the one of these values whose NameOf is `name`.
template <class Values>
auto ByName(const char* argument, const std::string& name, const Values& values) {
  std::vector<std::string_view> known;
  for (const auto& value : values) known.push_back(NameOf(value));
  return *(std::begin(values) + static_cast<std::ptrdiff_t>(PlaceOf(argument, name, known)));
}

Role ParseRole(const std::string& name);
// No names give no roles: a search then takes its default, and a list takes all blocks.
std::optional<Roles> ParseRoles(const std::vector<std::string>& names);
index::IndexPart ParsePart(const char* argument, const std::string& name);

}  // namespace everlong::bindings
