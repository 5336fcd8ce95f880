// Which pages a search may return, decided before scoring.
#pragma once

#include <cstdint>
#include <vector>

namespace everlong::index {

// One byte a page ordinal: 1 = may be returned. Pages past the end may not.
class PageFilter {
 public:
  PageFilter() = default;
  PageFilter(int32_t pages, bool allowed) : allowed_(static_cast<size_t>(pages), allowed ? 1 : 0) {}
  void Set(int32_t ordinal, bool allowed) { allowed_[static_cast<size_t>(ordinal)] = allowed ? 1 : 0; }
  [[nodiscard]] bool Allows(int32_t ordinal) const {
    return static_cast<size_t>(ordinal) < allowed_.size() && allowed_[static_cast<size_t>(ordinal)] != 0;
  }

 private:
  std::vector<uint8_t> allowed_;
};

struct Hit {
  int32_t page = 0;  // ordinal in the PageDirectory
  float score = 0;   // larger is better; the unit is the index kind's
};

}  // namespace everlong::index
