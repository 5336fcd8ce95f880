// Which pages a search may return, decided before scoring.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>
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
  // How many may be returned.
  [[nodiscard]] int32_t Count() const { return static_cast<int32_t>(std::ranges::count(allowed_, uint8_t{1})); }
  // The shortest run [first, last) of ordinals that holds all that are allowed; [0, 0) for none.
  [[nodiscard]] std::pair<int32_t, int32_t> Range() const {
    const auto first = std::ranges::find(allowed_, uint8_t{1});
    if (first == allowed_.end()) return {0, 0};
    const auto last = std::find(allowed_.rbegin(), allowed_.rend(), uint8_t{1});
    return {static_cast<int32_t>(first - allowed_.begin()), static_cast<int32_t>(allowed_.rend() - last)};
  }

 private:
  std::vector<uint8_t> allowed_;
};

struct Hit {
  int32_t page = 0;  // ordinal in the PageDirectory
  float score = 0;   // larger is better; the unit is the index kind's
};

}  // namespace everlong::index
