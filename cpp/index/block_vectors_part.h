// The common base of "mean_pool" and "hnsw": one vector for every block, behind an index of vectors. The vector is the
// direction of the sum of the block's un-rotated keys of the last layer.
#pragma once

#include <memory>
#include <set>
#include <span>

#include "everlong/base/file_path.h"
#include "everlong/index/part.h"
#include "everlong/index/vector_index.h"

namespace everlong::index {

class BlockVectorsPart final : public Part {
 public:
  using LoadIndex = Result<std::unique_ptr<VectorIndex>> (*)(const FilePath& file);

  // `index` is an empty index of Dimension(context); `load` loads one.
  BlockVectorsPart(const PartContext& context, std::unique_ptr<VectorIndex> index, LoadIndex load);
  static int32_t Dimension(const PartContext& context) { return context.kv_heads * context.head_dim; }

  PartNeeds needs() const override {
    PartNeeds needs;
    needs.key_sum = true;
    return needs;
  }
  Status Check(const BlockInput& block) const override;
  Status Add(const BlockInput& block) override;
  Status Forget(const BlockInput& block) override;
  bool Has(const BlockEntry& block) const override { return blocks_.contains(block.id); }
  Result<std::vector<Ranking>> Rank(const Query& query, const PageFilter& filter, int32_t k) const override;
  std::string settings() const override { return std::to_string(Dimension(context_)); }
  Status Save(const FilePath& file) const override { return index_->Save(file); }
  Status Load(const FilePath& file, std::span<const SavedBlock> blocks, bool gaps) override;
  int64_t bytes() const override { return index_->bytes(); }

 private:
  const PartContext& context_;
  std::unique_ptr<VectorIndex> index_;  // by block
  LoadIndex load_;
  std::set<int64_t> blocks_;
};

}  // namespace everlong::index
