// The part "lexical" over LexicalIndex. It is made with every memory, by token ids. Their statistics are restored from
// its file. It is made again by words once the caller has a table of them.
#include "everlong/index/lexical.h"

#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "built_in_parts.h"
#include "lexical_index.h"
#include "ranked.h"

namespace everlong::index {
namespace {

// Voices for the words of a page alone, and of the page with its neighbours. Beside an encoder the fit hears words as
// little as it can. Where words search alone they need both, so these stay as they were fitted without an encoder.
constexpr Voice kPageVoice{Evidence{1.5, 0.31}, Voice::Grows::kAsRoot};
constexpr Voice kGroupVoice{Evidence{0.0, 14.7}, Voice::Grows::kAsRoot};

// Without a table of words the token ids are the words, and their statistics are those that all parts share.
class LexicalPart final : public Part {
 public:
  LexicalPart(const PartContext& context, std::shared_ptr<const WordTable> words)
      : context_(context),
        words_(std::move(words)),
        index_(context.table, words_ == nullptr ? context.statistics : statistics_) {}

  PartNeeds needs() const override { return {.token_ids = true}; }

  Status Add(const BlockInput& block) override {
    const std::vector<std::vector<int32_t>> pages = TermsOf(block);
    for (size_t page = 0; page < pages.size(); ++page) {
      if (words_ != nullptr && !pages[page].empty()) statistics_.AddPage(pages[page]);
      EVERLONG_RETURN_IF_ERROR(index_.Add(block.first_page + static_cast<int32_t>(page), pages[page]));
    }
    return OkStatus();
  }

  Status Forget(const BlockInput& block) override {
    const std::vector<std::vector<int32_t>> pages = TermsOf(block);
    for (size_t page = 0; page < pages.size(); ++page) {
      if (words_ != nullptr && !pages[page].empty()) statistics_.RemovePage(pages[page]);
      index_.Remove(block.first_page + static_cast<int32_t>(page), pages[page]);
    }
    return OkStatus();
  }

  bool Has(const BlockEntry& block) const override { return block.pages().last <= index_.pages(); }

  bool CountInto(TokenStatistics& statistics) const override {
    if (words_ != nullptr) return false;
    index_.CountInto(statistics);
    return true;
  }

  Result<std::vector<Ranking>> Rank(const Query& query, const PageFilter& filter, int32_t k) const override {
    const std::vector<int32_t> terms = TermsOf(query.token_ids);
    EVERLONG_ASSIGN_OR_RETURN(LexicalIndex::Found found, index_.Search(terms, k, filter));
    const float whole = index_.WholeScore(terms);
    return std::vector{Ranked(std::move(found.pages), k, whole, Granularity::kPage, kPageVoice),
                       Ranked(std::move(found.groups), k, whole, Granularity::kGroup, kGroupVoice)};
  }

  std::string settings() const override {
    return words_ == nullptr ? std::string() : "words " + std::to_string(words_->digest());
  }
  Status Save(const IndexFile& file) const override { return index_.Save(file, context_.table.LiveOrdinals()); }

  Status Load(const FilePath& file, std::span<const SavedBlock> blocks, bool gaps) override {
    // Pages come in their order.
    if (gaps) return CorruptError("it lacks blocks of this memory");
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<SavedPage> pages,
                              PagesOfSaved(file, blocks, context_.table.page_tokens()));
    const auto lengths = words_ == nullptr ? LexicalIndex::Lengths::kOfTokens : LexicalIndex::Lengths::kOfWords;
    EVERLONG_RETURN_IF_ERROR(index_.Load(file, pages, lengths));
    if (words_ != nullptr) index_.CountInto(statistics_);
    return OkStatus();
  }

  int64_t bytes() const override { return index_.bytes() + (words_ == nullptr ? 0 : statistics_.bytes()); }

 private:
  // Return what a question is searched by: its words, and of a word that no page has its tokens.
  [[nodiscard]] std::vector<int32_t> TermsOf(std::span<const int32_t> token_ids) const {
    if (words_ == nullptr) return {token_ids.begin(), token_ids.end()};
    std::vector<int32_t> terms;
    for (const WordTable::Word& word : words_->Words(token_ids)) {
      if (word.last - word.first == 1 || statistics_.DocumentFrequency(word.term) > 0) {
        terms.push_back(word.term);
      } else {
        for (size_t at = word.first; at < word.last; ++at) terms.push_back(words_->TermOf(token_ids[at]));
      }
    }
    return terms;
  }

  // Return what each page is found by: the words that begin in it, and the tokens in it of words of several.
  [[nodiscard]] std::vector<std::vector<int32_t>> TermsOf(const BlockInput& block) const {
    std::vector<std::vector<int32_t>> pages(static_cast<size_t>(block.page_count()));
    if (words_ == nullptr) {
      for (int32_t page = 0; page < block.page_count(); ++page) {
        const std::span<const int32_t> ids = block.PageIds(page);
        pages[static_cast<size_t>(page)].assign(ids.begin(), ids.end());
      }
      return pages;
    }
    const auto page_of = [&](size_t token) -> std::vector<int32_t>& {
      return pages[token / static_cast<size_t>(block.page_tokens)];
    };
    for (const WordTable::Word& word : words_->Words(block.token_ids)) {
      page_of(word.first).push_back(word.term);
      if (word.last - word.first == 1) continue;
      for (size_t at = word.first; at < word.last; ++at) page_of(at).push_back(words_->TermOf(block.token_ids[at]));
    }
    return pages;
  }

  const PartContext& context_;
  const std::shared_ptr<const WordTable> words_;
  TokenStatistics statistics_;  // of words, where there is a table
  LexicalIndex index_;
};

Result<std::unique_ptr<Part>> Make(const PartContext& context) { return MakeLexicalPart(context, nullptr); }

}  // namespace

std::unique_ptr<Part> MakeLexicalPart(const PartContext& context, std::shared_ptr<const WordTable> words) {
  return std::make_unique<LexicalPart>(context, std::move(words));
}

PartKind LexicalKind() {
  PartKind kind;
  kind.name = "lexical";
  kind.made = PartKind::Made::kWithMemory;
  kind.voice = kPageVoice;
  kind.group_voice = kGroupVoice;
  kind.make = &Make;
  return kind;
}

}  // namespace everlong::index
