// The part "heads" over HeadsIndex.
#include <algorithm>
#include <limits>
#include <string>
#include <string_view>
#include <utility>

#include "built_in_parts.h"
#include "device_mirror.h"
#include "everlong/index/heads.h"
#include "heads_index.h"
#include "key_codes.h"
#include "page_neighbours.h"
#include "ranked.h"

namespace everlong::index {
namespace {

constexpr std::string_view kInput = "head_queries";

// Voices for the mass of a page alone, and summed over the page and its neighbours.
constexpr Voice kPageVoice{Evidence{60.0, 2.0}, Voice::Grows::kAsShare};
constexpr Voice kGroupVoice{Evidence{0.0, 6.0}, Voice::Grows::kAsRoot};

class HeadsPart final : public Part {
 public:
  HeadsPart(const PartContext& context, std::vector<RetrievalHead> heads, HeadsOptions options)
      : context_(context), index_(std::move(heads), context.head_dim, std::move(options)) {}

  PartNeeds needs() const override { return {.keys = index_.key_heads()}; }

  Status Check(const BlockInput& block) const override {
    std::vector<float> room;
    for (int32_t page = 0; page < block.page_count(); ++page) {
      if (std::ranges::all_of(block.keys->Page(page, index_.key_heads(), room), FiniteAsBf16)) continue;
      return InvalidArgumentError("payload holds keys that are NaN or infinite in bf16");
    }
    return OkStatus();
  }

  Status Add(const BlockInput& block) override {
    index_.SkipTo(block.first_page);
    std::vector<float> room;
    for (int32_t page = 0; page < block.page_count(); ++page) {
      EVERLONG_RETURN_IF_ERROR(
          index_.Add(block.keys->Page(page, index_.key_heads(), room), block.PageTokens(page), block.PageSinks(page)));
    }
    return OkStatus();
  }

  Status Forget(const BlockInput& block) override {
    for (int32_t page = 0; page < block.page_count(); ++page) index_.Forget(block.first_page + page);
    return OkStatus();
  }

  bool Has(const BlockEntry& block) const override { return block.pages().last <= index_.pages(); }

  Result<std::vector<Ranking>> Rank(const Query& query, const PageFilter& filter, int32_t k) const override {
    EVERLONG_RETURN_IF_ERROR(query.CheckShape(
        kInput, {std::ssize(query.token_ids), std::ssize(index_.heads()), context_.head_dim}, "[tokens, heads, D]"));
    const std::vector<float> weights = context_.statistics.Idf(query.token_ids);
    float all = 0;
    for (const float weight : weights) all += weight;
    all *= static_cast<float>(index_.heads().size());
    PageNeighbours neighbours(context_.table, filter);
    const auto beside = [&neighbours](int32_t page) { return neighbours.Of(page); };
    EVERLONG_ASSIGN_OR_RETURN(std::vector<Hit> scored, index_.Scored(query.Input(kInput), weights, filter, beside));
    Ranking groups = Ranked(SumsOverGroups(scored, neighbours), k, all, Granularity::kGroup, kGroupVoice);
    Ranking pages = Ranked(std::move(scored), k, all, Granularity::kPage, kPageVoice);
    if (!pages.hits.empty()) {
      const float best = pages.hits[0].score;
      const float second = pages.hits.size() > 1 ? pages.hits[1].score : 0.0F;
      pages.decision = {best / all,
                        std::min(kMaxDecisiveness, best / std::max(second, std::numeric_limits<float>::min()))};
    }
    return std::vector{std::move(pages), std::move(groups)};
  }

  std::string settings() const override {
    std::string settings = std::to_string(context_.head_dim);
    for (const RetrievalHead& head : index_.heads()) {
      settings +=
          " " + std::to_string(head.layer) + "." + std::to_string(head.query_head) + "." + std::to_string(head.kv_head);
    }
    const KeyStorage keys = index_.options().keys;
    if (keys != KeyStorage::kBf16) settings.append(" ").append(NameOf(keys));
    return settings;
  }

  Status Save(const IndexFile& file, BlockRun blocks) const override {
    return index_.Save(file, context_.table.LiveOrdinals(blocks));
  }

  Status Load(const FilePath& file, std::span<const SavedBlock> blocks, bool gaps) override {
    // Keys come in the order of their pages.
    if (gaps) return CorruptError("it lacks blocks of this memory");
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<SavedPage> pages,
                              PagesOfSaved(file, blocks, context_.table.page_tokens()));
    std::vector<int32_t> ordinals(pages.size());
    std::ranges::transform(pages, ordinals.begin(), &SavedPage::ordinal);
    EVERLONG_RETURN_IF_ERROR(index_.Load(file, ordinals));
    const auto differs = [this](const SavedPage& page) {
      return page.ordinal >= 0 && page.tokens != index_.tokens(page.ordinal);
    };
    if (std::ranges::any_of(pages, differs)) return CorruptError(Quoted(file) + ": pages of other lengths");
    return OkStatus();
  }

  int64_t bytes() const override { return index_.bytes(); }
  int64_t BytesFor(int32_t pages) const override { return pages * index_.PageBytes(context_.table.page_tokens()); }
  DeviceUse device_use() const override { return index_.device_use(); }

  std::vector<std::string> TakeMessages() const override {
    return MessagesOf(index_.TakeDeviceFailure(), "the retrieval heads");
  }

 private:
  const PartContext& context_;
  HeadsIndex index_;
};

}  // namespace

std::unique_ptr<Part> MakeHeadsPart(const PartContext& context, std::vector<RetrievalHead> heads,
                                    HeadsOptions options) {
  return std::make_unique<HeadsPart>(context, std::move(heads), std::move(options));
}

PartKind HeadsKind() {
  PartKind kind;
  kind.name = "heads";
  kind.input = kInput;
  kind.missing = "head_queries are given, expected none: this memory has no retrieval heads";
  kind.made = PartKind::Made::kByItsOptions;
  kind.needs_keys = true;
  kind.from_model = true;
  kind.in_segments = true;
  kind.voice = kPageVoice;
  kind.group_voice = kGroupVoice;
  return kind;
}

}  // namespace everlong::index
