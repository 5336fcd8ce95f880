// Which pages hold a token id, and how often: what words are looked up in.
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

namespace everlong::index {

// A page that holds an id.
struct Posting {
  int32_t page = 0;   // ordinal
  int32_t count = 0;  // of the id in it
  bool operator==(const Posting&) const = default;
};

// The postings of one id by page, ascending. It grows at its end and moves nothing. A posting is 8 bytes, a list has
// room for twice as many at most.
class PostingList {
 public:
  PostingList() = default;
  ~PostingList();
  PostingList(const PostingList&) = delete;
  PostingList& operator=(const PostingList&) = delete;

  // By one thread at a time.
  void Add(const Posting& posting);  // of a page behind all others
  // Nothing is left of the page, but the room that its posting takes. Nothing happens when it is not here.
  void Remove(int32_t page);
  // Room for so many in one piece, before there is any.
  void Reserve(int32_t count);
  [[nodiscard]] int32_t live() const { return live_; }  // without what was removed
  [[nodiscard]] int64_t bytes() const;

  // visit(posting) for those of pages in `range`, ascending. Beside the one that adds and removes: what is removed
  // meanwhile may be there or not.
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
  // One word, so that a posting is seen as it was or as it is.
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
    int32_t first = 0;  // what its first posting is in the list
    int32_t capacity = 0;
    std::unique_ptr<Packed[]> postings;
  };
  // Each is as long as all before it, so that there are not more.
  static constexpr size_t kMostChunks = 64;

  // The first of `filled` postings whose page is `page` or behind it.
  static int32_t FirstFrom(const Chunk& chunk, int32_t filled, int32_t page);
  void Grow(int32_t capacity);
  // The chunk that holds posting `at`.
  [[nodiscard]] const Chunk& ChunkOf(int32_t at) const;
  [[nodiscard]] Packed& Place(int32_t at) const;

  std::atomic<Chunk*> last_ = nullptr;  // owned; each owns the one before it
  std::atomic<int32_t> size_ = 0;
  int32_t live_ = 0;
};

// Of many pages: a list for every id, and how long the pages are. One thread at a time adds and removes; searches run
// beside it, over pages that were added before they began and are not removed while they run. They wait for no more
// than one page that is added.
class Postings {
 public:
  Postings() = default;

  // The next page to come is `page`, behind all others; pages between are empty. No id is negative.
  void Add(int32_t page, std::span<const int32_t> token_ids);
  // No trace of the page is left; `token_ids` are those that it was added with.
  void Remove(int32_t page, std::span<const int32_t> token_ids);

  [[nodiscard]] int32_t pages() const { return lengths_.size(); }  // one past the newest
  [[nodiscard]] int32_t length(int32_t page) const { return lengths_[page]; }
  [[nodiscard]] int64_t live_pages() const;  // that were not removed

  // The lists of some ids, null where there is none, and what a page's length is on average: of the same moment. What
  // was found stays as long as this.
  struct Found {
    std::vector<const PostingList*> lists;
    double average_length = 0;
  };
  [[nodiscard]] Found Find(std::span<const int32_t> token_ids) const;

  // --- by the one that adds
  // In order of their ids.
  struct Entry {
    int32_t id = 0;
    const PostingList* list = nullptr;  // with at least one posting that was not removed
  };
  [[nodiscard]] std::vector<Entry> All() const;
  // Takes up what All gave of another, of about so many ids: pages of these lengths (0 where there is none), then each
  // id's postings.
  void SetLengths(std::span<const int32_t> lengths, size_t ids);
  void SetPostings(int32_t id, std::span<const Posting> postings);

  [[nodiscard]] int64_t bytes() const;  // of host memory, about

 private:
  StableVector<int32_t> lengths_;  // [pages]; 0 once it was removed
  mutable FairSharedMutex guard_;  // of the map itself and the sums below; not of what searches read in the lists
  std::unordered_map<int32_t, PostingList> lists_;
  int64_t list_bytes_ = 0;
  int64_t tokens_ = 0;
  int64_t live_pages_ = 0;
};

}  // namespace everlong::index
