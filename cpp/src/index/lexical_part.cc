// The part "lexical" over LexicalIndex. It is made with every memory and not saved.
#include <memory>
#include <utility>

#include "built_in_parts.h"
#include "lexical_index.h"

namespace everlong::index {
namespace {

constexpr Voice kVoice{Voice::Finds::kWords, 6.74};

class LexicalPart final : public Part {
 public:
  explicit LexicalPart(std::unique_ptr<LexicalIndex> index) : index_(std::move(index)) {}

  PartNeeds needs() const override {
    PartNeeds needs;
    needs.token_ids = true;
    return needs;
  }

  Status Add(const BlockInput& block) override {
    for (int32_t page = 0; page < block.page_count(); ++page) {
      EVERLONG_RETURN_IF_ERROR(index_->Add(block.first_page + page, block.PageIds(page)));
    }
    pages_ = block.first_page + block.page_count();
    return OkStatus();
  }

  Status Forget(const BlockInput& block) override {
    for (int32_t page = 0; page < block.page_count(); ++page) {
      EVERLONG_RETURN_IF_ERROR(index_->Remove(block.first_page + page, block.PageIds(page)));
    }
    return OkStatus();
  }

  bool Has(const BlockEntry& block) const override { return block.pages().last <= pages_; }

  Result<std::vector<Ranking>> Rank(const Query& query, const PageFilter& filter, int32_t k) const override {
    Ranking ranking;
    ranking.voice = kVoice;
    EVERLONG_ASSIGN_OR_RETURN(ranking.hits, index_->Search(query.token_ids, k, filter));
    ranking.whole = index_->WholeScore(query.token_ids);
    ranking.unnamed = ScoreOfUnnamed(ranking.hits, k);
    return std::vector{std::move(ranking)};
  }

  int64_t bytes() const override { return index_->bytes(); }

 private:
  std::unique_ptr<LexicalIndex> index_;
  int32_t pages_ = 0;  // one past the newest that was added
};

Result<std::unique_ptr<Part>> Make(const PartContext& context) {
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<LexicalIndex> index, LexicalIndex::Create(context.statistics));
  return std::unique_ptr<Part>(std::make_unique<LexicalPart>(std::move(index)));
}

}  // namespace

PartKind LexicalKind() {
  PartKind kind;
  kind.name = "lexical";
  kind.made = PartKind::Made::kWithMemory;
  kind.saved = false;
  kind.voice = kVoice;
  kind.make = &Make;
  return kind;
}

}  // namespace everlong::index
