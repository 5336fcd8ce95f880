// The parts "mean_pool" and "hnsw": one vector for every block, searched exactly or by a graph. The vector is the
// direction of the sum of the block's un-rotated keys of the last layer.
#include <algorithm>
#include <cmath>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "built_in_parts.h"
#include "everlong/base/file_path.h"
#include "everlong/index/part.h"
#include "everlong/index/vector_index.h"

namespace everlong::index {
namespace {

constexpr std::string_view kInput = "mean_query";

int32_t DimensionOf(const PartContext& context) { return context.kv_heads * context.head_dim; }

class BlockVectorsPart final : public Part {
 public:
  using LoadIndex = Result<std::unique_ptr<VectorIndex>> (*)(const FilePath& file);

  // `index` is an empty index of DimensionOf(context); `load` loads one.
  BlockVectorsPart(const PartContext& context, std::unique_ptr<VectorIndex> index, LoadIndex load)
      : context_(context), index_(std::move(index)), load_(load) {}

  PartNeeds needs() const override { return {.key_sum = true}; }
  Status Check(const BlockInput& block) const override {
    if (std::ranges::all_of(block.key_sum, [](float value) { return std::isfinite(value); })) return OkStatus();
    return InvalidArgumentError("payload holds keys that are NaN or infinite in bf16");
  }

  // The mean and the sum of a block's keys have the same direction, and only the direction counts.
  Status Add(const BlockInput& block) override {
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

  Status Forget(const BlockInput& block) override {
    if (blocks_.erase(block.id) > 0) index_->Remove({&block.id, 1});
    return OkStatus();
  }

  bool Has(const BlockEntry& block) const override { return blocks_.contains(block.id); }
  Result<std::vector<Ranking>> Rank(const Query& query, const PageFilter& filter, int32_t k) const override {
    const std::span<const float> vector = query.Input(kInput);
    if (std::ssize(vector) != index_->dimension()) {
      return InvalidArgumentError(std::string(kInput) + " has " + std::to_string(vector.size()) +
                                  " numbers, expected " + std::to_string(index_->dimension()));
    }
    EVERLONG_RETURN_IF_ERROR(query.CheckShape(kInput, {index_->dimension()}, "[Hkv * D]"));
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<VectorHits> hits, index_->Search(vector, k, BlocksOf(filter)));
    Ranking ranking;
    for (const VectorHit& hit : hits[0]) {
      const PageRun pages = context_.table.Find(hit.id)->pages();
      for (int32_t ordinal = pages.first; ordinal < pages.last; ++ordinal) {
        if (std::ssize(ranking.hits) < k && filter.Allows(ordinal)) ranking.hits.push_back({ordinal, hit.score});
      }
    }
    return std::vector{std::move(ranking)};
  }

  std::string settings() const override { return std::to_string(DimensionOf(context_)); }
  Status Save(const IndexFile& file, BlockRun /*all*/) const override { return index_->Save(file); }
  Status Load(const FilePath& file, std::span<const SavedBlock> /*blocks*/, bool /*gaps*/) override {
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

  int64_t bytes() const override { return index_->bytes(); }

 private:
  // Return the blocks with any of these pages.
  [[nodiscard]] IdFilter BlocksOf(const PageFilter& pages) const {
    if (pages.Count() > index_->size() / static_cast<int64_t>(IdFilter::kFewest)) {
      return IdFilter([this, &pages](int64_t id) {
        const BlockEntry* const block = context_.table.Find(id);
        return block != nullptr && pages.AllowsAny(block->pages());
      });
    }
    std::vector<int64_t> ids;
    for (const PageRun& run : pages.runs()) {
      for (int32_t ordinal = run.first; ordinal < run.last;) {
        const BlockEntry& block = context_.table.BlockOfPage(ordinal);
        if (ids.empty() || ids.back() != block.id) ids.push_back(block.id);
        ordinal = block.pages().last;
      }
    }
    return IdFilter::Few(std::move(ids));
  }

  const PartContext& context_;
  std::unique_ptr<VectorIndex> index_;  // by block
  LoadIndex load_;
  std::set<int64_t> blocks_;
};

PartKind OfBlocks(std::string_view name, decltype(PartKind::make) make) {
  PartKind kind;
  kind.name = name;
  kind.input = kInput;
  kind.missing = "mean_query is given, expected none: a memory of text alone has no keys";
  kind.made = PartKind::Made::kWhenAsked;
  kind.needs_keys = true;
  kind.from_model = true;
  kind.make = make;
  return kind;
}

}  // namespace

PartKind MeanPoolKind() {
  return OfBlocks("mean_pool", [](const PartContext& context) -> Result<std::unique_ptr<Part>> {
    auto index = MakeFlatIndex({.dimension = DimensionOf(context)});
    return std::unique_ptr<Part>(std::make_unique<BlockVectorsPart>(context, std::move(index), &LoadFlatIndex));
  });
}

PartKind HnswKind() {
  return OfBlocks("hnsw", [](const PartContext& context) -> Result<std::unique_ptr<Part>> {
    auto index = MakeHnswIndex({.dimension = DimensionOf(context)});
    return std::unique_ptr<Part>(std::make_unique<BlockVectorsPart>(context, std::move(index), &LoadHnswIndex));
  });
}

}  // namespace everlong::index
