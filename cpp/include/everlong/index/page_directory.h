// Which pages there are, in order of archiving: the common numbering of every index kind.
#pragma once

#include <cstdint>
#include <string>
#include <unordered_map>
#include <vector>

#include "everlong/base/token_span.h"

namespace everlong::index {

struct PageEntry {
  int64_t block = 0;
  int32_t page = 0;            // within the block
  int64_t stream = 0;
  TokenSpan span;              // of the stream
  int32_t sink_tokens = 0;     // leading tokens of this page that are sinks of their stream: never scored (findings.md)
  std::string source;
  bool forgotten = false;
};

// Ordinals 0, 1, 2 ... are given in order of Add and never change. Not thread-safe; owned and locked by os::Memory.
class PageDirectory {
 public:
  int32_t Add(PageEntry entry);
  void ForgetBlock(int64_t block);
  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(entries_.size()); }
  [[nodiscard]] const PageEntry& at(int32_t ordinal) const;
  // The page before / after in the same stream, contiguous with this one, of the same source and not forgotten; -1 if none.
  [[nodiscard]] int32_t Previous(int32_t ordinal) const;
  [[nodiscard]] int32_t Next(int32_t ordinal) const;

 private:
  std::vector<PageEntry> entries_;
  std::unordered_map<int64_t, std::pair<int32_t, int32_t>> blocks_;  // block -> [first, last) ordinals
};

}  // namespace everlong::index
