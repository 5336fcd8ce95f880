#include "memory_state.h"

namespace everlong::os {

Result<IndexSet::Writer> MemoryState::TurnToWrite() {
  IndexSet::Writer writer = index.TakeTurn();
  if (store->read_only()) return ReadOnlyError("the memory was opened for reading");
  EVERLONG_RETURN_IF_ERROR(index.broken());
  return writer;
}

Status MemoryState::Flush(IndexSet::Writer& writer) {
  std::vector<int64_t> lost;
  const Status flushed = store->Flush(&lost);
  std::map<int64_t, std::vector<int32_t>> gone;
  for (const int64_t id : lost) gone[id] = std::move(submitted[id]);
  submitted.clear();
  const BlockTags::Told told = tags.ToldOf(lost);
  static_cast<void>(writer.Forget(gone));  // every later call reports the error
  tags.Forget(told);
  return flushed;
}

PageRef RefOf(const index::BlockTable& table, int32_t ordinal) {
  const index::PageEntry page = table.page(ordinal);
  return {page.block, page.page, page.stream, page.span, page.sink_tokens};
}

void AddPagesOf(const index::BlockTable& table, const index::BlockEntry& block, std::vector<PageRef>& pages) {
  for (int32_t ordinal = block.first_page; ordinal < block.pages().last; ++ordinal) {
    pages.push_back(RefOf(table, ordinal));
  }
}

}  // namespace everlong::os
