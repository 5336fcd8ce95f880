// The parts "meaning" and "encoder" over MeaningVectors.
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "built_in_parts.h"
#include "everlong/index/meaning.h"
#include "everlong/index/part_kinds.h"
#include "meaning_mirror.h"
#include "meaning_scan.h"
#include "meaning_vectors.h"
#include "ranked.h"
#include "vector_scan.h"

namespace everlong::index {
namespace {

struct Voices {
  Voice page;
  Voice group;
};
constexpr Voices kMeaningVoices{{Evidence{73.0, 0.3}, Voice::Grows::kAsShare},
                                {Evidence{0.0, 25.9}, Voice::Grows::kAsShare}};
constexpr Voices kEncoderVoices{{Evidence{51.3, 6.8}, Voice::Grows::kAsShare},
                                {Evidence{0.0, 14.9}, Voice::Grows::kAsShare}};
constexpr std::string_view kDtype = "I8";

int64_t GroupsOf(int64_t tokens, int32_t group_tokens) { return (tokens + group_tokens - 1) / group_tokens; }

Status CheckOption(const char* name, int32_t value, int32_t most) {
  if (value >= 1 && value <= most) return OkStatus();
  return InvalidArgumentError(std::string(name) + " is " + std::to_string(value) + ", expected 1 to " +
                              std::to_string(most));
}

// "I8 [3, 128]"
std::string NameOf(std::string_view dtype, std::span<const int64_t> shape) {
  std::string name(dtype);
  for (const int64_t size : shape) name.append(&size == shape.data() ? " [" : ", ").append(std::to_string(size));
  return name.append(shape.empty() ? " []" : "]");
}

class MeaningPart final : public Part {
 public:
  MeaningPart(const PartContext& context, MeaningOptions options, IndexPart part)
      : context_(context),
        options_(std::move(options)),
        kind_(KindOf(part)),
        tensor_(MeaningTensor(options_.pack, part)),
        vectors_(options_.dimension) {
    if (options_.device != nullptr) {
      mirror_ = std::make_unique<MeaningMirror>(options_.device, options_.device_bytes);
    }
  }

  PartNeeds needs() const override { return {.tensors = true, .tensor_names = {tensor_}}; }

  Status Check(const BlockInput& block) const override { return CheckTensors(block); }

  Status CheckTensors(const BlockInput& block) const override {
    const BlockTensor* const tensor = Find(block);
    if (tensor == nullptr || Fits(block, *tensor)) return OkStatus();
    return InvalidArgumentError("tensor '" + tensor_ + "' is " + NameOf(tensor->dtype, tensor->shape) + ", expected " +
                                NameOf(kDtype, ShapeOf(block)));
  }

  // A stored tensor that does not fit was never checked, so the block waits for another.
  Status Add(const BlockInput& block) override {
    vectors_.SkipTo(block.first_page);
    const BlockTensor* const tensor = Find(block);
    if (tensor != nullptr && Fits(block, *tensor)) {
      vectors_.Add(CountsOf(block), NumbersOf(*tensor));
      Mirror(block);
    } else {
      vectors_.SkipTo(block.first_page + block.page_count());
    }
    return OkStatus();
  }

  Status TensorsCame(const BlockInput& block) override {
    const BlockTensor* const tensor = Find(block);
    if (tensor == nullptr) return OkStatus();
    EVERLONG_RETURN_IF_ERROR(CheckTensors(block));
    vectors_.Put(block.first_page, CountsOf(block), NumbersOf(*tensor));
    Mirror(block);
    return OkStatus();
  }

  Status Forget(const BlockInput& block) override {
    vectors_.Forget(PagesOf(block));
    Mirror(block);
    return OkStatus();
  }

  bool Has(const BlockEntry& block) const override { return vectors_.Has(block.first_page); }

  Result<std::vector<Ranking>> Rank(const Query& query, const PageFilter& filter, int32_t k) const override {
    const std::span<const float> rows = query.Input(kind_.input);
    const int64_t tokens = std::max<int64_t>(1, std::ssize(rows) / options_.dimension);
    EVERLONG_RETURN_IF_ERROR(CheckVectors(rows, tokens, options_.dimension, std::string(kind_.input).c_str()));
    const MeaningQuery question(rows, options_.dimension);
    const MeaningPages pages = PagesOfMeaning(vectors_, context_.table, filter);
    const std::vector<MeaningScore> scores = Scores(question, pages);
    const auto whole = static_cast<float>(question.whole());
    const auto hits_by = [&](float MeaningScore::* score) {
      std::vector<Hit> hits;
      hits.reserve(scores.size());
      for (size_t at = 0; at < scores.size(); ++at) hits.push_back({pages.ordinals[at], scores[at].*score});
      return hits;
    };
    return std::vector{
        Ranked(hits_by(&MeaningScore::alone), k, whole, Granularity::kPage, kind_.voice),
        Ranked(hits_by(&MeaningScore::with_neighbours), k, whole, Granularity::kGroup, kind_.group_voice)};
  }

  int64_t bytes() const override { return vectors_.bytes(); }
  int64_t BytesFor(int32_t pages) const override {
    const int64_t vectors = GroupsOf(context_.table.page_tokens(), options_.group_tokens) * pages;
    const int64_t tile_words = MeaningTileWords(MeaningQuadsOf(options_.dimension));
    return vectors * tile_words * static_cast<int64_t>(sizeof(uint32_t)) / kTileVectors;
  }

  DeviceUse device_use() const override { return mirror_ == nullptr ? DeviceUse{} : mirror_->use(); }

  std::vector<std::string> TakeMessages() const override {
    return MessagesOf(mirror_ == nullptr ? OkStatus() : mirror_->TakeFailure(), "the vectors of meaning");
  }

 private:
  static PageRun PagesOf(const BlockInput& block) { return {block.first_page, block.first_page + block.page_count()}; }
  void Mirror(const BlockInput& block) {
    if (mirror_ != nullptr) mirror_->Follow(vectors_, PagesOf(block));
  }
  [[nodiscard]] std::vector<MeaningScore> Scores(const MeaningQuery& question, const MeaningPages& pages) const {
    if (mirror_ != nullptr) {
      if (auto on_device = mirror_->Scores(vectors_, question, pages)) return *std::move(on_device);
    }
    return ScoreMeaning(question, vectors_, pages);
  }
  [[nodiscard]] const BlockTensor* Find(const BlockInput& block) const {
    const auto found = std::ranges::find(block.tensors, tensor_, &BlockTensor::name);
    return found == block.tensors.end() ? nullptr : &*found;
  }
  [[nodiscard]] std::array<int64_t, 2> ShapeOf(const BlockInput& block) const {
    return {MeaningVectorsOf(block.tokens, block.page_tokens, options_.group_tokens), options_.dimension};
  }
  [[nodiscard]] bool Fits(const BlockInput& block, const BlockTensor& tensor) const {
    return tensor.dtype == kDtype && std::ranges::equal(tensor.shape, ShapeOf(block));
  }
  // Return how many vectors every page has.
  [[nodiscard]] std::vector<int32_t> CountsOf(const BlockInput& block) const {
    std::vector<int32_t> counts;
    for (int32_t page = 0; page < block.page_count(); ++page) {
      counts.push_back(static_cast<int32_t>(GroupsOf(block.PageTokens(page), options_.group_tokens)));
    }
    return counts;
  }
  static std::span<const int8_t> NumbersOf(const BlockTensor& tensor) {
    return {reinterpret_cast<const int8_t*>(tensor.bytes.data()), tensor.bytes.size()};
  }

  const PartContext& context_;
  MeaningOptions options_;
  const PartKind& kind_;
  std::string tensor_;
  MeaningVectors vectors_;
  std::unique_ptr<MeaningMirror> mirror_;  // none without a device
};

PartKind KindBy(const Voices& voices) {
  PartKind kind;
  kind.made = PartKind::Made::kByItsOptions;
  kind.saved = false;
  kind.voice = voices.page;
  kind.group_voice = voices.group;
  return kind;
}

}  // namespace

Status Validate(const MeaningOptions& options) {
  if (options.pack.empty() || options.pack.size() > kMostPackBytes) {
    return InvalidArgumentError("pack has " + std::to_string(options.pack.size()) + " bytes, expected 1 to " +
                                std::to_string(kMostPackBytes));
  }
  EVERLONG_RETURN_IF_ERROR(CheckOption("dimension", options.dimension, kMostMeaningDimension));
  return CheckOption("group_tokens", options.group_tokens, kMostGroupTokens);
}

std::string MeaningTensor(const std::string& pack, IndexPart part) {
  return std::string(NameOf(part)).append(".").append(pack);
}

int64_t MeaningVectorsOf(int64_t tokens, int32_t page_tokens, int32_t group_tokens) {
  return tokens / page_tokens * GroupsOf(page_tokens, group_tokens) + GroupsOf(tokens % page_tokens, group_tokens);
}

std::unique_ptr<Part> MakeMeaningPart(const PartContext& context, const MeaningOptions& options, IndexPart part) {
  return std::make_unique<MeaningPart>(context, options, part);
}

PartKind MeaningKind() {
  PartKind kind = KindBy(kMeaningVoices);
  kind.name = "meaning";
  kind.input = "meaning_query";
  kind.missing = "meaning_query is given, expected none: this memory has no vectors of meaning";
  return kind;
}

PartKind EncoderKind() {
  PartKind kind = KindBy(kEncoderVoices);
  kind.name = "encoder";
  kind.input = "encoder_query";
  kind.missing = "encoder_query is given, expected none: this memory has no vectors of an encoder";
  return kind;
}

}  // namespace everlong::index
