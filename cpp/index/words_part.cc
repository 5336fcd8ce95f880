// The part "words" over LexicalIndex: BM25 over the words that token ids spell, and over the tokens of words of
// several.
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "built_in_parts.h"
#include "everlong/index/words.h"
#include "lexical_index.h"
#include "ranked.h"

namespace everlong::index {
namespace {

// As those of "lexical", which hears the same.
constexpr Voice kPageVoice{Evidence{1.5, 0.31}, Voice::Grows::kAsRoot};
constexpr Voice kGroupVoice{Evidence{0.0, 14.7}, Voice::Grows::kAsRoot};

class WordsPart final : public Part {
 public:
  WordsPart(const PartContext& context, std::shared_ptr<const WordTable> words)
      : context_(context), words_(std::move(words)), index_(context.table, statistics_) {}

  PartNeeds needs() const override { return {.token_ids = true}; }

  Status Add(const BlockInput& block) override {
    const std::vector<std::vector<int32_t>> pages = TermsOf(block);
    for (size_t page = 0; page < pages.size(); ++page) {
      if (!pages[page].empty()) statistics_.AddPage(pages[page]);
      EVERLONG_RETURN_IF_ERROR(index_.Add(block.first_page + static_cast<int32_t>(page), pages[page]));
    }
    return OkStatus();
  }

  Status Forget(const BlockInput& block) override {
    const std::vector<std::vector<int32_t>> pages = TermsOf(block);
    for (size_t page = 0; page < pages.size(); ++page) {
      if (!pages[page].empty()) statistics_.RemovePage(pages[page]);
      index_.Remove(block.first_page + static_cast<int32_t>(page), pages[page]);
    }
    return OkStatus();
  }

  bool Has(const BlockEntry& block) const override { return block.pages().last <= index_.pages(); }

  Result<std::vector<Ranking>> Rank(const Query& query, const PageFilter& filter, int32_t k) const override {
    const std::vector<int32_t> terms = TermsOf(query.token_ids);
    EVERLONG_ASSIGN_OR_RETURN(LexicalIndex::Found found, index_.Search(terms, k, filter));
    const float whole = index_.WholeScore(terms);
    return std::vector{Ranked(std::move(found.pages), k, whole, Granularity::kPage, kPageVoice),
                       Ranked(std::move(found.groups), k, whole, Granularity::kGroup, kGroupVoice)};
  }

  std::string settings() const override { return std::to_string(words_->digest()); }
  Status Save(const IndexFile& file, BlockRun blocks) const override {
    return index_.Save(file, context_.table.LiveOrdinals(blocks));
  }

  Status Load(const FilePath& file, std::span<const SavedBlock> blocks, bool gaps) override {
    // Pages come in their order.
    if (gaps) return CorruptError("it lacks blocks of this memory");
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<SavedPage> pages,
                              PagesOfSaved(file, blocks, context_.table.page_tokens()));
    return index_.Load(file, pages, Lengths::kOfWords, &statistics_);
  }

  int64_t bytes() const override { return index_.bytes() + statistics_.bytes(); }

 private:
  // Return what a question is searched by: its words, and of a word that no page has its tokens.
  [[nodiscard]] std::vector<int32_t> TermsOf(std::span<const int32_t> token_ids) const {
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
  TokenStatistics statistics_;  // of words, and of tokens of words of several
  LexicalIndex index_;
};

}  // namespace

std::unique_ptr<Part> MakeWordsPart(const PartContext& context, std::shared_ptr<const WordTable> words) {
  return std::make_unique<WordsPart>(context, std::move(words));
}

PartKind WordsKind() {
  PartKind kind;
  kind.name = "words";
  kind.made = PartKind::Made::kByItsOptions;
  kind.missing = "words are asked for, expected none: this memory was given no table of words";
  kind.in_segments = true;
  kind.voice = kPageVoice;
  kind.group_voice = kGroupVoice;
  return kind;
}

}  // namespace everlong::index
