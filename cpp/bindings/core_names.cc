#include "core_names.h"

#include <pybind11/pybind11.h>

#include <algorithm>
#include <array>

#include "everlong/index/part_kinds.h"

namespace everlong::bindings {

size_t PlaceOf(const char* argument, const std::string& name, const std::vector<std::string_view>& known) {
  const auto found = std::ranges::find(known, name);
  if (found != known.end()) return static_cast<size_t>(found - known.begin());
  std::string expected;
  for (size_t at = 0; at < known.size(); ++at) {
    if (at > 0) expected += at + 1 == known.size() ? " or " : ", ";
    expected.append("\"").append(known[at]).append("\"");
  }
  throw pybind11::value_error(std::string(argument) + ": \"" + name + "\", expected " + expected);
}

Role ParseRole(const std::string& name) {
  return ByName("role", name, std::array{Role::kRead, Role::kAsked, Role::kSaid});
}

std::optional<Roles> ParseRoles(const std::vector<std::string>& names) {
  if (names.empty()) return std::nullopt;
  Roles roles{};
  for (const std::string& name : names) roles.Add(ParseRole(name));
  return roles;
}

index::IndexPart ParsePart(const char* argument, const std::string& name) {
  return ByName(argument, name, index::AllIndexParts());
}

}  // namespace everlong::bindings
