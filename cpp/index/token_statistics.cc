#include "everlong/index/token_statistics.h"

#include <algorithm>
#include <cmath>
#include <mutex>
#include <shared_mutex>
#include <utility>

#include "everlong/base/check.h"

namespace everlong::index {
namespace {

// The distinct ids of every page, and the number of pages. An empty block is a page without ids.
struct DistinctIds {
  std::vector<int32_t> ids;
  int64_t pages = 0;

  DistinctIds(std::span<const int32_t> token_ids, int32_t page_tokens) {
    do {
      const auto of_page = token_ids.first(std::min(token_ids.size(), static_cast<size_t>(page_tokens)));
      token_ids = token_ids.subspan(of_page.size());
      const auto begin = static_cast<std::ptrdiff_t>(ids.size());
      ids.insert(ids.end(), of_page.begin(), of_page.end());
      std::sort(ids.begin() + begin, ids.end());
      ids.erase(std::unique(ids.begin() + begin, ids.end()), ids.end());
      ++pages;
    } while (!token_ids.empty());
  }
};

}  // namespace

void TokenStatistics::AddBlock(std::span<const int32_t> token_ids, int32_t page_tokens) {
  const DistinctIds distinct(token_ids, page_tokens);
  const std::unique_lock changing(guard_);
  for (const int32_t id : distinct.ids) ++frequency_[id];
  pages_ += distinct.pages;
}

void TokenStatistics::RemoveBlock(std::span<const int32_t> token_ids, int32_t page_tokens) {
  const DistinctIds distinct(token_ids, page_tokens);
  const std::unique_lock changing(guard_);
  for (const int32_t id : distinct.ids) {
    // A saved index may have counted other ids than the block has: statistics are rough then, and rebuilt with it.
    if (FrequencyOf(id) == 0) continue;
    const auto found = frequency_.try_emplace(id, 0).first;
    if (--found->second == 0) frequency_.erase(found);
  }
  pages_ = std::max<int64_t>(0, pages_ - distinct.pages);
}

void TokenStatistics::AddCounted(std::span<const Frequency> frequencies, int64_t pages) {
  const std::unique_lock changing(guard_);
  frequency_.reserve(frequency_.size() + frequencies.size());
  for (const auto& [id, of_id] : frequencies) frequency_[id] += of_id;
  pages_ += pages;
}

void TokenStatistics::AddSaved(std::shared_ptr<const CountedPages> saved) {
  const std::unique_lock changing(guard_);
  saved_.push_back(std::move(saved));
}

void TokenStatistics::Clear() {
  const std::unique_lock changing(guard_);
  pages_ = 0;
  saved_ = {};
  frequency_ = {};
}

int64_t TokenStatistics::pages() const {
  const std::shared_lock reading(guard_);
  return pages_;
}

int64_t TokenStatistics::bytes() const {
  const std::shared_lock reading(guard_);
  constexpr size_t kNodeBytes = 32;  // link, id and count, as they are allocated
  return static_cast<int64_t>(frequency_.size() * kNodeBytes + frequency_.bucket_count() * sizeof(void*));
}

int64_t TokenStatistics::FrequencyOf(int32_t id) const {
  const auto found = frequency_.find(id);
  int64_t pages = found == frequency_.end() ? 0 : found->second;
  for (const auto& saved : saved_) pages += saved->PagesWith(id);
  return std::max<int64_t>(0, pages);
}

int64_t TokenStatistics::DocumentFrequency(int32_t token_id) const {
  return DocumentFrequencies({&token_id, 1}).of_ids[0];
}

TokenStatistics::Frequencies TokenStatistics::DocumentFrequencies(std::span<const int32_t> token_ids) const {
  Frequencies frequencies;
  frequencies.of_ids.reserve(token_ids.size());
  const std::shared_lock reading(guard_);
  for (const int32_t id : token_ids) frequencies.of_ids.push_back(FrequencyOf(id));
  frequencies.pages = pages_;
  return frequencies;
}

std::vector<float> TokenStatistics::Idf(std::span<const int32_t> token_ids) const {
  const Frequencies frequencies = DocumentFrequencies(token_ids);
  std::vector<float> idf(token_ids.size());
  std::ranges::transform(frequencies.of_ids, idf.begin(), [&frequencies](int64_t of_id) {
    const auto frequency = static_cast<double>(std::max<int64_t>(1, of_id));
    return static_cast<float>(std::log1p(static_cast<double>(frequencies.pages) / frequency));
  });
  return idf;
}

}  // namespace everlong::index
