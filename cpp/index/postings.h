// Postings for the lexical search: which pages hold a token id, and how often.
#pragma once

#include <algorithm>
#include <array>
#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <unordered_map>
#include <vector>

#include "everlong/base/fair_shared_mutex.h"
#include "everlong/base/stable_vector.h"
#include "everlong/index/page_filter.h"
#include "everlong/index/token_statistics.h"
#include "posting.h"
#include "saved_postings.h"

namespace everlong::index {

// The postings of one id by page, ascending. It grows at its end and moves nothing. A posting takes 8 bytes, and a list
// has room for at most twice as many.
class PostingList {
 public:
  PostingList() = default;
  ~PostingList();
  PostingList(const PostingList&) = delete;
  PostingList& operator=(const PostingList&) = delete;

  // One thread at a time may call these.
  void Add(const Posting& posting);  // of a page behind all others
  // Remove a page. Only the room of its posting stays. Nothing happens when it is not here.
  void Remove(int32_t page);
  [[nodiscard]] int32_t live() const { return live_; }  // without what was removed
  [[nodiscard]] int32_t last_page() const;              // of any posting that was not removed, or an older one
  [[nodiscard]] int64_t bytes() const;

  // Call visit(posting) for pages in `range`, ascending. It may run beside the thread that adds and removes; what is
  // removed meanwhile may be there or not.
  template <class Visit>
  void ForEach(PageRun range, const Visit& visit) const {
    const int32_t size = size_.load(std::memory_order_acquire);
    std::array<const Chunk*, kMostChunks> chunks;
    size_t count = 0;
    for (const Chunk* chunk = last_.load(std::memory_order_acquire); chunk != nullptr; chunk = chunk->previous.get()) {
      if (chunk->first < size) chunks[count++] = chunk;
    }
    while (count > 0) {
      const Chunk& chunk = *chunks[--count];
      const int32_t filled = std::min(size - chunk.first, chunk.capacity);
      if (Unpacked(chunk.postings[static_cast<size_t>(filled - 1)]).page < range.first) continue;
      for (int32_t at = FirstFrom(chunk, filled, range.first); at < filled; ++at) {
        const Posting posting = Unpacked(chunk.postings[static_cast<size_t>(at)]);
        if (posting.page >= range.last) return;
        if (posting.count > 0) visit(posting);
      }
    }
  }

 private:
  // One word, so that a reader sees a posting either before or after a change.
  using Packed = std::atomic<uint64_t>;
  static uint64_t Pack(const Posting& posting) {
    return (static_cast<uint64_t>(posting.page) << 32U) | static_cast<uint32_t>(posting.count);
  }
  static Posting Unpacked(const Packed& packed) {
    const uint64_t bits = packed.load(std::memory_order_relaxed);
    return {static_cast<int32_t>(bits >> 32U), static_cast<int32_t>(bits & UINT32_MAX)};
  }

  struct Chunk {
    std::unique_ptr<Chunk> previous;
    int32_t first = 0;  // place of its first posting in the list
    int32_t capacity = 0;
    std::unique_ptr<Packed[]> postings;
  };
  // Each chunk is as long as all before it, so there are at most so many.
  static constexpr size_t kMostChunks = 64;

  // Return the first of `filled` postings with a page at or behind `page`.
  static int32_t FirstFrom(const Chunk& chunk, int32_t filled, int32_t page);
  void Grow(int32_t capacity);
  // Return the chunk that holds posting `at`.
  [[nodiscard]] const Chunk& ChunkOf(int32_t at) const;
  [[nodiscard]] Packed& Place(int32_t at) const;

  std::atomic<Chunk*> last_ = nullptr;  // owned; each owns the one before it
  std::atomic<int32_t> size_ = 0;
  int32_t live_ = 0;
};

// The postings of one id: of saved pages, and behind them of those that were added.
class IdPostings {
 public:
  void Take(const SavedPostings& of, const SavedPostings::List& list) { saved_.push_back({&of, list}); }
  void Take(const PostingList& list) { added_ = &list; }

  // Call visit(posting) for pages in `range`, ascending, as PostingList::ForEach. Of saved pages it has also those that
  // were removed.
  template <class Visit>
  void ForEach(PageRun range, const Visit& visit) const {
    for (const auto& [of, list] : saved_) of->ForEach(list, range, visit);
    if (added_ != nullptr) added_->ForEach(range, visit);
  }

 private:
  struct Saved {
    const SavedPostings* of = nullptr;
    SavedPostings::List list;
  };
  std::vector<Saved> saved_;  // by page
  const PostingList* added_ = nullptr;
};

// The postings of many pages: a list for every id, and the lengths of pages. Saved pages stay in their files. One
// thread at a time adds and removes. Searches run beside it, over pages that were added before they began and are not
// removed while they run. They wait at most for one page that is being added.
class Postings {
 public:
  Postings() = default;

  // Add saved pages behind all that are here, before any other page is added. Add what `statistics`, if given, would
  // have counted for them. kCorrupt when some are left out of a file that is damaged.
  Status AddSaved(std::shared_ptr<const SavedPostings> saved, TokenStatistics* statistics = nullptr);
  // Add `page`, behind all others; pages between are empty. No id is negative.
  void Add(int32_t page, std::span<const int32_t> token_ids);
  // Remove every trace of a page. `token_ids` are those that it was added with; of others nothing happens. The file of
  // a saved page keeps it, and its length here is 0.
  void Remove(int32_t page, std::span<const int32_t> token_ids);

  [[nodiscard]] int32_t pages() const { return lengths_.size(); }  // one past the newest
  [[nodiscard]] int32_t length(int32_t page) const { return lengths_[page]; }
  [[nodiscard]] int64_t live_pages() const;  // that have ids and were not removed

  // The postings of some ids, and pages' average length at that moment. They live as long as this.
  struct Found {
    std::vector<IdPostings> lists;
    double average_length = 0;
  };
  [[nodiscard]] Found Find(std::span<const int32_t> token_ids) const;

  // --- for the thread that adds
  // Entries are in order of their ids.
  struct Entry {
    int32_t id = 0;
    IdPostings list;
  };
  // Return the postings that may be of pages in `range`.
  [[nodiscard]] std::vector<Entry> In(PageRun range) const;
  // Read all of the files that some of these pages, ascending, lie in. kCorrupt when one does not match its checksum:
  // what is made of these pages must not be saved.
  [[nodiscard]] Status Check(std::span<const int32_t> pages) const;
  // Add what TokenStatistics::AddBlock would have counted for all pages that are here.
  void CountInto(TokenStatistics& statistics) const;

  [[nodiscard]] int64_t bytes() const;  // of host memory, about

 private:
  StableVector<int32_t> lengths_;                            // [pages]; 0 once it was removed
  std::vector<std::shared_ptr<const SavedPostings>> saved_;  // by page
  std::unordered_map<int32_t, int64_t> gone_;                // how many saved pages have an id and are not here
  mutable FairSharedMutex guard_;  // of the maps and the sums below; not of what searches read in the lists
  std::unordered_map<int32_t, PostingList> lists_;
  int64_t list_bytes_ = 0;
  int64_t tokens_ = 0;
  int64_t live_pages_ = 0;
};

}  // namespace everlong::index
