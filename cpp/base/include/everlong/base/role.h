// The role of a span of a stream: text that was read, a question that was asked, or an answer that was said.
#pragma once

#include <cstdint>
#include <initializer_list>
#include <optional>
#include <string_view>

namespace everlong {

// The numbers are stored (docs/format.md).
enum class Role : uint8_t {
  kRead = 0,
  kAsked = 1,  // a prompt: it is never evidence for its own answer
  kSaid = 2,   // generated
};
inline constexpr int kRoles = 3;

constexpr std::string_view NameOf(Role role) {
  constexpr std::string_view kNames[kRoles] = {"read", "asked", "said"};
  return kNames[static_cast<int>(role)];
}

// Return the role with this number; none for any other number.
constexpr std::optional<Role> RoleOf(int64_t number) {
  return number >= 0 && number < kRoles ? std::optional(static_cast<Role>(number)) : std::nullopt;
}

// A set of roles. A value type, thread-safe as one.
class Roles {
 public:
  constexpr Roles(std::initializer_list<Role> roles) {
    for (const Role role : roles) Add(role);
  }
  static constexpr Roles All() { return {Role::kRead, Role::kAsked, Role::kSaid}; }
  constexpr void Add(Role role) { bits_ = static_cast<uint8_t>(bits_ | 1U << static_cast<unsigned>(role)); }
  [[nodiscard]] constexpr bool Has(Role role) const { return (bits_ >> static_cast<unsigned>(role) & 1U) != 0; }
  [[nodiscard]] constexpr bool empty() const { return bits_ == 0; }
  constexpr bool operator==(const Roles&) const = default;

 private:
  uint8_t bits_ = 0;
};

}  // namespace everlong
