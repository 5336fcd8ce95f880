// Which pages there are, in order of archiving: the common numbering of every index kind.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <unordered_map>
#include <utility>
#include <vector>

#include "everlong/base/token_span.h"

namespace everlong::index {

struct PageEntry {
  int64_t block = 0;
  int32_t page = 0;  // within the block
  int64_t stream = 0;
  TokenSpan span;           // of the stream; not empty
  int32_t sink_tokens = 0;  // leading tokens of this page that are sinks of their stream: never scored (findings.md)
  std::string source;
  bool forgotten = false;
};

// Ordinals 0, 1, 2 ... are given in order of Add and never change; the pages of a block are added one after the other.
// Not thread-safe; owned and locked by os::Memory.
class PageDirectory {
 public:
  int32_t Add(PageEntry entry);
  // Nothing happens for a block that is not here.
  void ForgetBlock(int64_t block);
  [[nodiscard]] int32_t size() const { return static_cast<int32_t>(entries_.size()); }
  [[nodiscard]] const PageEntry& at(int32_t ordinal) const;
  // The page before / after in the same stream, contiguous with this one, of the same source and not forgotten; -1 if
  // none. Should a stream hold two such pages, the one added last.
  [[nodiscard]] int32_t Previous(int32_t ordinal) const;
  [[nodiscard]] int32_t Next(int32_t ordinal) const;
  [[nodiscard]] int64_t bytes() const;  // of host memory, about

 private:
  using StreamPosition = std::pair<int64_t, int64_t>;  // stream, token

  [[nodiscard]] int32_t Neighbour(const std::map<StreamPosition, int32_t>& edges, const PageEntry& entry,
                                  int64_t token) const;

  std::vector<PageEntry> entries_;
  std::unordered_map<int64_t, std::pair<int32_t, int32_t>> blocks_;  // block -> [first, last) ordinals
  std::map<StreamPosition, int32_t> begins_;                         // pages not forgotten, by their first token
  std::map<StreamPosition, int32_t> ends_;                           // and by one past their last
};

}  // namespace everlong::index
