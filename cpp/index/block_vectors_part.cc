#include "block_vectors_part.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace everlong::index {

BlockVectorsPart::BlockVectorsPart(const PartContext& context, std::unique_ptr<VectorIndex> index, LoadIndex load)
    : context_(context), index_(std::move(index)), load_(load) {}

Status BlockVectorsPart::Check(const BlockInput& block) const {
  if (std::ranges::all_of(block.key_sum, [](float value) { return std::isfinite(value); })) return OkStatus();
  return InvalidArgumentError("payload holds keys that are NaN or infinite in bf16");
}

// The mean and the sum of a block's keys have the same direction, and only the direction counts.
Status BlockVectorsPart::Add(const BlockInput& block) {
  float largest = 0;
  for (const float value : block.key_sum) largest = std::max(largest, std::abs(value));
  std::vector<float> direction(block.key_sum.begin(), block.key_sum.end());
  if (largest > 0) {
    for (float& value : direction) value /= largest;
  }
  EVERLONG_RETURN_IF_ERROR(index_->Add({&block.id, 1}, direction));
  blocks_.insert(block.id);
  return OkStatus();
}

Status BlockVectorsPart::Forget(const BlockInput& block) {
  if (blocks_.erase(block.id) > 0) index_->Remove({&block.id, 1});
  return OkStatus();
}

Result<std::vector<Ranking>> BlockVectorsPart::Rank(const Query& query, const PageFilter& filter, int32_t k) const {
  const std::span<const float> vector = query.Input("mean_query");
  if (std::ssize(vector) != index_->dimension()) {
    return InvalidArgumentError("mean_query has " + std::to_string(vector.size()) + " numbers, expected " +
                                std::to_string(index_->dimension()));
  }
  const IdFilter with_allowed_page([&](int64_t id) {
    const BlockEntry* const block = context_.table.Find(id);
    return block != nullptr && filter.AllowsAny(block->pages());
  });
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<VectorHits> hits, index_->Search(vector, k, with_allowed_page));
  Ranking ranking;
  for (const VectorHit& hit : hits[0]) {
    const PageRun pages = context_.table.Find(hit.id)->pages();
    for (int32_t ordinal = pages.first; ordinal < pages.last; ++ordinal) {
      if (std::ssize(ranking.hits) < k && filter.Allows(ordinal)) ranking.hits.push_back({ordinal, hit.score});
    }
  }
  return std::vector{std::move(ranking)};
}

Status BlockVectorsPart::Load(const FilePath& file, std::span<const SavedBlock> /*blocks*/, bool /*gaps*/) {
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<VectorIndex> loaded, load_(file));
  if (loaded->dimension() != index_->dimension()) return CorruptError("it holds vectors of another size");
  index_ = std::move(loaded);
  for (const int64_t id : index_->ids()) {
    if (context_.table.Find(id) == nullptr) {
      index_->Remove({&id, 1});
    } else {
      blocks_.insert(id);
    }
  }
  return OkStatus();
}

}  // namespace everlong::index
