// The files that pages of an index lie in.
#pragma once

#include <algorithm>
#include <span>
#include <utility>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/index/index_file.h"
#include "everlong/index/page_filter.h"

namespace everlong::index {

// It keeps the files mapped. One thread at a time uses it.
class MappedPages {
 public:
  // Keep a file that only pages of `run` lie in.
  void Add(MappedIndexFile file, PageRun run) { files_.push_back({std::move(file), run}); }
  // Read all of each file that one of these pages, ascending, may lie in. kCorrupt when one does not match its
  // checksum: what is made of these pages must not be saved.
  [[nodiscard]] Status Check(std::span<const int32_t> pages) const {
    for (const auto& [file, run] : files_) {
      const auto found = std::ranges::lower_bound(pages, run.first);
      if (found != pages.end() && *found < run.last) EVERLONG_RETURN_IF_ERROR(file.Check());
    }
    return OkStatus();
  }

 private:
  std::vector<std::pair<MappedIndexFile, PageRun>> files_;
};

}  // namespace everlong::index
