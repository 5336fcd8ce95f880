// The part "lexical" over LexicalIndex. It is made with every memory. The token statistics are restored from its file.
#include <memory>
#include <utility>

#include "built_in_parts.h"
#include "lexical_index.h"
#include "ranked.h"

namespace everlong::index {
namespace {

// Voices for the words of a page alone, and of the page with its neighbours. Beside an encoder the fit hears words as
// little as it can. Where words search alone they need both, so these stay as they were fitted without an encoder.
constexpr Voice kPageVoice{Evidence{1.5, 0.31}, Voice::Grows::kAsRoot};
constexpr Voice kGroupVoice{Evidence{0.0, 14.7}, Voice::Grows::kAsRoot};

class LexicalPart final : public Part {
 public:
  explicit LexicalPart(const PartContext& context) : context_(context), index_(context.table, context.statistics) {}

  PartNeeds needs() const override { return {.token_ids = true}; }

  Status Add(const BlockInput& block) override {
    for (int32_t page = 0; page < block.page_count(); ++page) {
      EVERLONG_RETURN_IF_ERROR(index_.Add(block.first_page + page, block.PageIds(page)));
    }
    return OkStatus();
  }

  Status Forget(const BlockInput& block) override {
    for (int32_t page = 0; page < block.page_count(); ++page) {
      index_.Remove(block.first_page + page, block.PageIds(page));
    }
    return OkStatus();
  }

  bool Has(const BlockEntry& block) const override { return block.pages().last <= index_.pages(); }

  bool CountInto(TokenStatistics& statistics) const override {
    index_.CountInto(statistics);
    return true;
  }

  Result<std::vector<Ranking>> Rank(const Query& query, const PageFilter& filter, int32_t k) const override {
    EVERLONG_ASSIGN_OR_RETURN(LexicalIndex::Found found, index_.Search(query.token_ids, k, filter));
    const float whole = index_.WholeScore(query.token_ids);
    return std::vector{Ranked(std::move(found.pages), k, whole, Granularity::kPage, kPageVoice),
                       Ranked(std::move(found.groups), k, whole, Granularity::kGroup, kGroupVoice)};
  }

  Status Save(const IndexFile& file, BlockRun blocks) const override {
    return index_.Save(file, context_.table.LiveOrdinals(blocks));
  }

  Status Load(const FilePath& file, std::span<const SavedBlock> blocks, bool gaps) override {
    // Pages come in their order.
    if (gaps) return CorruptError("it lacks blocks of this memory");
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<SavedPage> pages,
                              PagesOfSaved(file, blocks, context_.table.page_tokens()));
    return index_.Load(file, pages);
  }

  int64_t bytes() const override { return index_.bytes(); }

 private:
  const PartContext& context_;
  LexicalIndex index_;
};

Result<std::unique_ptr<Part>> Make(const PartContext& context) {
  return std::unique_ptr<Part>(std::make_unique<LexicalPart>(context));
}

}  // namespace

PartKind LexicalKind() {
  PartKind kind;
  kind.name = "lexical";
  kind.made = PartKind::Made::kWithMemory;
  kind.in_segments = true;
  kind.voice = kPageVoice;
  kind.group_voice = kGroupVoice;
  kind.make = &Make;
  return kind;
}

}  // namespace everlong::index
