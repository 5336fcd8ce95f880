#include "postings.h"

#include <algorithm>
#include <map>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "everlong/base/check.h"
#include "everlong/base/first_not.h"

namespace everlong::index {
namespace {

// Return the distinct ids of a page and how often each is there, in order of the ids.
std::vector<std::pair<int32_t, int32_t>> CountsOf(std::span<const int32_t> token_ids) {
  std::vector<int32_t> sorted(token_ids.begin(), token_ids.end());
  std::ranges::sort(sorted);
  std::vector<std::pair<int32_t, int32_t>> counts;
  for (const int32_t id : sorted) {
    if (counts.empty() || counts.back().first != id) counts.emplace_back(id, 0);
    ++counts.back().second;
  }
  return counts;
}

}  // namespace

PostingList::~PostingList() {
  // Free chunks one after the other. Chunks that free each other would recurse as deep as there are chunks.
  std::unique_ptr<Chunk> chunk(last_.load());
  while (chunk != nullptr) chunk = std::move(chunk->previous);
}

int32_t PostingList::FirstFrom(const Chunk& chunk, int32_t filled, int32_t page) {
  return FirstNot(filled, [&](int32_t at) { return Unpacked(chunk.postings[static_cast<size_t>(at)]).page < page; });
}

void PostingList::Grow(int32_t capacity) {
  auto chunk = std::make_unique<Chunk>();
  chunk->first = size_.load(std::memory_order_relaxed);
  chunk->capacity = capacity;
  chunk->postings = std::make_unique<Packed[]>(static_cast<size_t>(capacity));
  chunk->previous.reset(last_.load(std::memory_order_relaxed));
  last_.store(chunk.release(), std::memory_order_release);
}

int32_t PostingList::last_page() const {
  const int32_t size = size_.load(std::memory_order_relaxed);
  return size == 0 ? -1 : Unpacked(Place(size - 1)).page;
}

void PostingList::Add(const Posting& posting) {
  const int32_t at = size_.load(std::memory_order_relaxed);
  EVERLONG_CHECK(at < INT32_MAX);
  const Chunk* last = last_.load(std::memory_order_relaxed);
  if (last == nullptr || at - last->first == last->capacity) {
    Grow(std::max(4, at));
    last = last_.load(std::memory_order_relaxed);
  }
  last->postings[static_cast<size_t>(at - last->first)].store(Pack(posting), std::memory_order_relaxed);
  ++live_;
  size_.store(at + 1, std::memory_order_release);
}

const PostingList::Chunk& PostingList::ChunkOf(int32_t at) const {
  const Chunk* chunk = last_.load(std::memory_order_relaxed);
  while (at < chunk->first) chunk = chunk->previous.get();
  return *chunk;
}

PostingList::Packed& PostingList::Place(int32_t at) const {
  const Chunk& chunk = ChunkOf(at);
  return chunk.postings[static_cast<size_t>(at - chunk.first)];
}

void PostingList::Remove(int32_t page) {
  const int32_t size = size_.load(std::memory_order_relaxed);
  int32_t at = -1;
  for (const Chunk* chunk = last_.load(std::memory_order_relaxed); chunk != nullptr; chunk = chunk->previous.get()) {
    const Posting first = Unpacked(chunk->postings[0]);
    // What was removed behind a page has its number in the chunk below: that is not the page.
    if (first.page > page || first == Posting{page, 0}) continue;
    at = chunk->first + FirstFrom(*chunk, std::min(size - chunk->first, chunk->capacity), page);
    break;
  }
  if (at < 0 || at == size || Unpacked(Place(at)) == Posting{page, 0} || Unpacked(Place(at)).page != page) return;
  // Leave a posting that counts nothing, of the page before. The order stays, and nobody can tell where the page was.
  // Those that were removed behind it had its number.
  const uint64_t gone = Pack({at == 0 ? 0 : Unpacked(Place(at - 1)).page, 0});
  do {
    Place(at++).store(gone, std::memory_order_relaxed);
  } while (at < size && Unpacked(Place(at)) == Posting{page, 0});
  --live_;
}

int64_t PostingList::bytes() const {
  int64_t bytes = 0;
  for (const Chunk* chunk = last_.load(std::memory_order_relaxed); chunk != nullptr; chunk = chunk->previous.get()) {
    constexpr size_t kAllocations = 32;  // of a chunk and its postings
    bytes += static_cast<int64_t>(sizeof(Chunk) + kAllocations + static_cast<size_t>(chunk->capacity) * sizeof(Packed));
  }
  return bytes;
}

Status Postings::AddSaved(std::shared_ptr<const SavedPostings> saved, TokenStatistics* statistics) {
  const PageRun here = saved->pages();
  if (here.size() == 0) return OkStatus();
  EVERLONG_CHECK(lists_.empty() && here.first >= pages());
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<TokenStatistics::Frequency> left_out, saved->LeftOut());
  const std::vector<int32_t> lengths = saved->LengthsHere();
  const std::unique_lock changing(guard_);
  if (statistics != nullptr) {
    statistics->AddSaved(saved);
    statistics->AddCounted(left_out, std::ranges::count_if(lengths, [](int32_t length) { return length > 0; }));
  }
  for (const auto& [id, less] : left_out) gone_[id] -= less;
  while (lengths_.size() < here.first) lengths_.push_back(0);
  for (const int32_t length : lengths) {
    lengths_.push_back(length);
    tokens_ += length;
    if (length > 0) ++live_pages_;
  }
  saved_.push_back(std::move(saved));
  return OkStatus();
}

void Postings::Add(int32_t page, std::span<const int32_t> token_ids) {
  const auto counts = CountsOf(token_ids);
  EVERLONG_CHECK(page >= pages() && (counts.empty() || counts.front().first >= 0));
  const std::unique_lock changing(guard_);
  for (const auto& [id, count] : counts) {
    PostingList& list = lists_[id];
    const int64_t before = list.bytes();
    list.Add({page, count});
    list_bytes_ += list.bytes() - before;
  }
  while (lengths_.size() < page) lengths_.push_back(0);
  lengths_.push_back(static_cast<int32_t>(token_ids.size()));
  tokens_ += std::ssize(token_ids);
  if (!token_ids.empty()) ++live_pages_;
}

void Postings::Remove(int32_t page, std::span<const int32_t> token_ids) {
  const auto counts = CountsOf(token_ids);
  const auto file = std::ranges::upper_bound(saved_, page, {}, [](const auto& saved) { return saved->pages().last; });
  const std::unique_lock changing(guard_);
  for (const auto& [id, count] : counts) {
    // A saved index may have held other ids than the page has.
    if (file != saved_.end()) {
      const auto went = [&, id = id](const Posting& /*posting*/) { ++gone_[id]; };
      if (lengths_[page] > 0) (*file)->ForEach((*file)->Find(id), {page, page + 1}, went);
    } else if (const auto list = lists_.find(id); list != lists_.end()) {
      list->second.Remove(page);
    }
  }
  tokens_ -= lengths_[page];
  if (lengths_[page] > 0) --live_pages_;
  lengths_[page] = 0;
}

Postings::Found Postings::Find(std::span<const int32_t> token_ids) const {
  Found found;
  found.lists.resize(token_ids.size());
  const std::shared_lock reading(guard_);
  for (size_t at = 0; at < token_ids.size(); ++at) {
    for (const auto& saved : saved_) {
      if (const SavedPostings::List list = saved->Find(token_ids[at]); !list.numbers.empty())
        found.lists[at].Take(*saved, list);
    }
    if (const auto list = lists_.find(token_ids[at]); list != lists_.end()) found.lists[at].Take(list->second);
  }
  if (live_pages_ > 0) found.average_length = static_cast<double>(tokens_) / static_cast<double>(live_pages_);
  return found;
}

int64_t Postings::live_pages() const {
  const std::shared_lock reading(guard_);
  return live_pages_;
}

std::vector<Postings::Entry> Postings::In(PageRun range) const {
  std::map<int32_t, IdPostings> by_id;
  const std::shared_lock reading(guard_);
  for (const auto& saved : saved_) {
    if (saved->pages().first >= range.last || saved->pages().last <= range.first) continue;
    saved->ForEachId([&](int32_t id, const SavedPostings::List& list) { by_id[id].Take(*saved, list); });
  }
  for (const auto& [id, list] : lists_) {
    if (list.live() > 0 && list.last_page() >= range.first) by_id[id].Take(list);
  }
  std::vector<Entry> entries;
  entries.reserve(by_id.size());
  for (auto& [id, list] : by_id) entries.push_back({id, std::move(list)});
  return entries;
}

Status Postings::Check(std::span<const int32_t> pages) const {
  for (const auto& saved : saved_) {
    const auto found = std::ranges::lower_bound(pages, saved->pages().first);
    if (found != pages.end() && *found < saved->pages().last) EVERLONG_RETURN_IF_ERROR(saved->Check());
  }
  return OkStatus();
}

void Postings::CountInto(TokenStatistics& statistics) const {
  std::vector<TokenStatistics::Frequency> frequencies;
  const std::shared_lock reading(guard_);
  for (const auto& saved : saved_) statistics.AddSaved(saved);
  for (const auto& [id, pages] : gone_) frequencies.push_back({id, -pages});
  for (const auto& [id, list] : lists_) frequencies.push_back({id, list.live()});
  statistics.AddCounted(frequencies, live_pages_);
}

int64_t Postings::bytes() const {
  constexpr size_t kNodeBytes = sizeof(PostingList) + 32;  // link, id and list, as they are allocated
  constexpr size_t kGoneBytes = 32;
  const std::shared_lock reading(guard_);
  int64_t bytes = lengths_.bytes() + list_bytes_;
  for (const auto& saved : saved_) bytes += saved->bytes();
  return bytes + static_cast<int64_t>(lists_.size() * kNodeBytes + lists_.bucket_count() * sizeof(void*) +
                                      gone_.size() * kGoneBytes);
}

}  // namespace everlong::index
