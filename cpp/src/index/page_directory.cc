#include "everlong/index/page_directory.h"

#include "everlong/base/check.h"

namespace everlong::index {

int32_t PageDirectory::Add(PageEntry entry) {
  EVERLONG_CHECK(!entry.span.empty());
  const int32_t ordinal = size();
  const auto [block, is_new] = blocks_.try_emplace(entry.block, ordinal, ordinal + 1);
  if (!is_new) {
    EVERLONG_CHECK(block->second.second == ordinal);
    block->second.second = ordinal + 1;
  }
  if (!entry.forgotten) {
    begins_[{entry.stream, entry.span.begin}] = ordinal;
    ends_[{entry.stream, entry.span.end}] = ordinal;
  }
  entries_.push_back(std::move(entry));
  return ordinal;
}

void PageDirectory::ForgetBlock(int64_t block) {
  const auto found = blocks_.find(block);
  if (found == blocks_.end()) return;
  const auto erase_edge = [](std::map<StreamPosition, int32_t>& edges, StreamPosition position, int32_t ordinal) {
    const auto edge = edges.find(position);
    if (edge != edges.end() && edge->second == ordinal) edges.erase(edge);
  };
  for (int32_t ordinal = found->second.first; ordinal < found->second.second; ++ordinal) {
    PageEntry& entry = entries_[static_cast<size_t>(ordinal)];
    entry.forgotten = true;
    erase_edge(begins_, {entry.stream, entry.span.begin}, ordinal);
    erase_edge(ends_, {entry.stream, entry.span.end}, ordinal);
  }
}

const PageEntry& PageDirectory::at(int32_t ordinal) const {
  EVERLONG_CHECK(ordinal >= 0 && ordinal < size());
  return entries_[static_cast<size_t>(ordinal)];
}

int32_t PageDirectory::Neighbour(const std::map<StreamPosition, int32_t>& edges, const PageEntry& entry,
                                 int64_t token) const {
  const auto edge = edges.find({entry.stream, token});
  if (edge == edges.end() || at(edge->second).source != entry.source) return -1;
  return edge->second;
}

int64_t PageDirectory::bytes() const {
  constexpr size_t kEdgeBytes = 64;   // a node of begins_ or ends_, as it is allocated
  constexpr size_t kBlockBytes = 48;  // of blocks_
  return static_cast<int64_t>(entries_.capacity() * sizeof(PageEntry) + (begins_.size() + ends_.size()) * kEdgeBytes +
                              blocks_.size() * kBlockBytes);
}

int32_t PageDirectory::Previous(int32_t ordinal) const {
  const PageEntry& entry = at(ordinal);
  return Neighbour(ends_, entry, entry.span.begin);
}

int32_t PageDirectory::Next(int32_t ordinal) const {
  const PageEntry& entry = at(ordinal);
  return Neighbour(begins_, entry, entry.span.end);
}

}  // namespace everlong::index
