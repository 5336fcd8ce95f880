// The part "embedding" over PageVectors.
#include <memory>
#include <optional>
#include <string_view>
#include <utility>

#include "built_in_parts.h"
#include "everlong/index/page_vectors.h"
#include "page_vectors.h"

namespace everlong::index {
namespace {

constexpr std::string_view kInput = "page_query";
constexpr Voice kVoice{Evidence{36.6, 30.4}};

class EmbeddingPart final : public Part {
 public:
  EmbeddingPart(const PartContext& context, const PageVectorOptions& options) : context_(context), vectors_(options) {}

  // Its vectors come later, by AddVectors.
  Status Add(const BlockInput& /*block*/) override { return OkStatus(); }
  Status Forget(const BlockInput& block) override {
    vectors_.Remove(block.id);
    return OkStatus();
  }
  bool Has(const BlockEntry& block) const override { return vectors_.Has(block.id); }

  Status AddVectors(const BlockEntry& block, std::span<const int32_t> pages, std::span<const float> vectors,
                    std::span<const std::vector<int32_t>> terms) override {
    return vectors_.Add(block.id, block.page_count, pages, vectors, terms);
  }

  std::vector<float> BlockVector(const BlockEntry& block) const override { return vectors_.Mean(block.id); }

  std::shared_ptr<NeuralInvertedIndex> lists() const override { return vectors_.lists(); }

  Result<std::vector<Ranking>> Rank(const Query& query, const PageFilter& filter, int32_t k) const override {
    EVERLONG_RETURN_IF_ERROR(query.CheckShape(kInput, {vectors_.options().dimension}, "[dimension]"));
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<PageVectors::Found> found,
                              vectors_.Search(query.Input(kInput), query.token_ids, k, context_.table, filter));
    Ranking ranking;
    ranking.voice = kVoice;
    for (const PageVectors::Found& page : found) {
      ranking.hits.push_back({context_.table.Find(page.block)->first_page + page.page, page.score});
    }
    ranking.unnamed = ScoreOfUnnamed(ranking.hits, k);
    return std::vector{std::move(ranking)};
  }

  std::string settings() const override { return vectors_.Settings(); }
  Status Save(const IndexFile& file, BlockRun /*all*/) const override { return vectors_.Save(file); }
  Status Load(const FilePath& file, std::span<const SavedBlock> /*blocks*/, bool /*gaps*/) override {
    EVERLONG_ASSIGN_OR_RETURN(vectors_, PageVectors::Load(vectors_.options(), file));
    for (const int64_t block : vectors_.Blocks()) {
      if (context_.table.Find(block) == nullptr) vectors_.Remove(block);
    }
    return OkStatus();
  }
  int64_t bytes() const override { return vectors_.bytes(); }

 private:
  const PartContext& context_;
  PageVectors vectors_;
};

std::unique_ptr<Part> FromSettings(const PartContext& context, const std::string& settings) {
  const std::optional<PageVectorOptions> options = PageVectors::ParseSettings(settings);
  return options ? MakeEmbeddingPart(context, *options) : nullptr;
}

}  // namespace

std::unique_ptr<Part> MakeEmbeddingPart(const PartContext& context, const PageVectorOptions& options) {
  return std::make_unique<EmbeddingPart>(context, options);
}

PartKind EmbeddingKind() {
  PartKind kind;
  kind.name = "embedding";
  kind.input = kInput;
  kind.missing = "page_query is given, expected none: this memory has no vectors of pages";
  kind.made = PartKind::Made::kByItsOptions;
  kind.voice = kVoice;
  kind.from_caller = true;
  kind.from_settings = &FromSettings;
  return kind;
}

}  // namespace everlong::index
