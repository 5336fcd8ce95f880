// Filters of pages as the plainest thing: a byte a page. What runs of pages are compared with, and made of.
#pragma once

#include <cstdint>
#include <vector>

#include "everlong/index/page_filter.h"

namespace everlong::index {

// As a PageFilter it is the runs of what its bytes allow.
class PageMask : public PageFilter {
 public:
  PageMask() = default;
  PageMask(int32_t pages, bool allowed) : allowed_(static_cast<size_t>(pages), allowed ? 1 : 0) { MakeRuns(); }
  void Set(int32_t ordinal, bool allowed) {
    allowed_[static_cast<size_t>(ordinal)] = allowed ? 1 : 0;
    MakeRuns();
  }
  // By the bytes.
  [[nodiscard]] bool Allows(int32_t ordinal) const {
    return static_cast<size_t>(ordinal) < allowed_.size() && allowed_[static_cast<size_t>(ordinal)] != 0;
  }

 private:
  void MakeRuns() {
    PageFilter runs;
    for (int32_t page = 0; page < static_cast<int32_t>(allowed_.size()); ++page) {
      if (Allows(page)) runs.Add({page, page + 1});
    }
    static_cast<PageFilter&>(*this) = runs;
  }

  std::vector<uint8_t> allowed_;
};

}  // namespace everlong::index
