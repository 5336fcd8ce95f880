// The parts "meaning" and "encoder" over MeaningVectors.
#include <algorithm>
#include <array>
#include <cstddef>
#include <memory>
#include <numeric>
#include <optional>
#include <span>
#include <string_view>
#include <utility>
#include <vector>

#include "built_in_parts.h"
#include "everlong/base/mapped_reads.h"
#include "everlong/index/meaning.h"
#include "everlong/index/part_kinds.h"
#include "mapped_pages.h"
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
constexpr Voices kMeaningVoices{{Evidence{55.0, 3.2}, Voice::Grows::kAsShare},
                                {Evidence{0.0, 18.0}, Voice::Grows::kAsShare}};
constexpr Voices kEncoderVoices{{Evidence{39.5, 3.8}, Voice::Grows::kAsShare},
                                {Evidence{0.0, 27.0}, Voice::Grows::kAsShare}};
// The share of the pages that signs leave to be scored by numbers, the fewest and the most; and how many times the
// pages of a ranking, at least.
constexpr size_t kLeftShare = 64;
constexpr size_t kFewestLeft = 512;
constexpr size_t kMostLeft = 16'384;
constexpr size_t kLeftOfRanked = 8;
constexpr std::string_view kDtype = "I8";
constexpr std::string_view kMagic = "everlong meaning 2\n";

int64_t GroupsOf(int64_t tokens, int32_t group_tokens) { return (tokens + group_tokens - 1) / group_tokens; }

// Return how many of so many pages are left for a ranking of the k best.
size_t LeftOf(size_t pages, int32_t k) {
  return std::max(std::clamp(pages / kLeftShare, kFewestLeft, kMostLeft), kLeftOfRanked * static_cast<size_t>(k));
}

Status CheckOption(const char* name, int32_t value, int32_t most) {
  if (value >= 1 && value <= most) return OkStatus();
  return InvalidArgumentError(std::string(name) + " is " + std::to_string(value) + ", expected 1 to " +
                              std::to_string(most));
}

// "I8 [3, 128]"
std::string NameOf(std::string_view dtype, std::span<const int64_t> shape) {
  std::string name(dtype);
  name.append(" [");
  for (size_t at = 0; at < shape.size(); ++at) name.append(at == 0 ? "" : ", ").append(std::to_string(shape[at]));
  return name.append("]");
}

// Return the numbers of a part's options, each with a space behind it, and the pack, which may have any letters.
std::string SettingsOf(const MeaningOptions& options) {
  std::string settings;
  for (const int32_t number :
       {options.dimension, options.group_tokens, options.sentence_dimension, options.sentence_tokens}) {
    settings.append(std::to_string(number)).append(" ");
  }
  return settings.append(options.pack);
}

// Return the names of the tensors that a part with these settings takes; none where they are not such.
std::vector<std::string> TensorsOf(std::string_view settings, IndexPart part) {
  size_t at = 0;
  bool has_sentences = false;
  for (int number = 0; number < 4; ++number) {
    const size_t space = settings.find(' ', at);
    if (space == std::string_view::npos) return {};
    if (number == 2) has_sentences = settings.substr(at, space - at) != "0";
    at = space + 1;
  }
  const std::string pack(settings.substr(at));
  std::vector<std::string> names{MeaningTensor(pack, part)};
  if (has_sentences) names.insert(names.end(), {SentenceTensor(pack), PassageTensor(pack)});
  return names;
}

// Vectors of one kind, of all pages: a tensor of each block, with one for every `group_tokens` tokens of a page.
class Space {
 public:
  Space(std::string tensor, int32_t dimension, int32_t group_tokens)
      : tensor_(std::move(tensor)), dimension_(dimension), group_tokens_(group_tokens), vectors_(dimension) {}

  [[nodiscard]] const std::string& tensor() const { return tensor_; }
  [[nodiscard]] int32_t dimension() const { return dimension_; }
  [[nodiscard]] const MeaningVectors& vectors() const { return vectors_; }
  MeaningVectors& vectors() { return vectors_; }

  [[nodiscard]] Status Check(const BlockInput& block) const {
    const BlockTensor* const tensor = Find(block);
    if (tensor == nullptr || Fits(block, *tensor)) return OkStatus();
    return InvalidArgumentError("tensor '" + tensor_ + "' is " + NameOf(tensor->dtype, tensor->shape) + ", expected " +
                                NameOf(kDtype, ShapeOf(block)));
  }
  // Take a tensor, if it came. One that was stored may not fit, because it was never checked: then the block waits for
  // another. Return whether it has one now.
  bool Put(const BlockInput& block) {
    vectors_.SkipTo(block.first_page + block.page_count());
    const BlockTensor* const tensor = Find(block);
    if (tensor == nullptr || !Fits(block, *tensor)) return false;
    vectors_.Put(block.first_page, CountsOf(block.tokens, block.page_tokens), NumbersOf(*tensor));
    return true;
  }
  void WriteTo(IndexFileWriter& writer, std::span<const int32_t> first_pages) const {
    for (const int32_t page : first_pages) writer.WriteAll(vectors_.SignTiles(page));
    for (const int32_t page : first_pages) writer.WriteAll(vectors_.Tiles(page));
  }
  // Take what WriteTo wrote of these blocks. The mapping must outlive it.
  Status ReadFrom(IndexFileReader& reader, std::span<const SavedBlock> blocks, int32_t page_tokens) {
    std::vector<std::span<const uint32_t>> signs;
    for (const SavedBlock& block : blocks) {
      const int64_t count = MeaningVectorsOf(block.tokens, page_tokens, group_tokens_);
      if (std::cmp_greater(count, reader.left() / sizeof(uint32_t))) return reader.Truncated();  // words may overflow
      EVERLONG_ASSIGN_OR_RETURN(signs.emplace_back(), reader.ReadMapped<uint32_t>(vectors_.SignWords(count)));
    }
    EVERLONG_ASSIGN_OR_RETURN(const std::span<const uint32_t> begin, reader.ReadMapped<uint32_t>(0));
    for (size_t at = 0; at < blocks.size(); ++at) {
      const SavedBlock& block = blocks[at];
      const int64_t count = MeaningVectorsOf(block.tokens, page_tokens, group_tokens_);
      EVERLONG_ASSIGN_OR_RETURN(const std::span<const uint32_t> tiles,
                                reader.ReadMapped<uint32_t>(vectors_.TileWords(count)));
      if (block.first_page < 0) continue;
      vectors_.PutMapped(block.first_page, CountsOf(block.tokens, page_tokens), tiles, signs[at]);
    }
    // A search of many pages reads all signs, and the vectors of few.
    EVERLONG_ASSIGN_OR_RETURN(const std::span<const uint32_t> end, reader.ReadMapped<uint32_t>(0));
    ReadByThemselves(std::span(begin.data(), end.data()));
    return OkStatus();
  }
  [[nodiscard]] int64_t BytesFor(int64_t pages, int32_t page_tokens) const {
    const int64_t tile_words = MeaningTileWords(MeaningQuadsOf(dimension_));
    const int64_t sign_words = int64_t{SignWordsOf(MeaningQuadsOf(dimension_))} * kTileVectors;
    return GroupsOf(page_tokens, group_tokens_) * pages * (tile_words + sign_words) *
           static_cast<int64_t>(sizeof(uint32_t)) / kTileVectors;
  }

 private:
  [[nodiscard]] const BlockTensor* Find(const BlockInput& block) const {
    const auto found = std::ranges::find(block.tensors, tensor_, &BlockTensor::name);
    return found == block.tensors.end() ? nullptr : &*found;
  }
  [[nodiscard]] std::array<int64_t, 2> ShapeOf(const BlockInput& block) const {
    return {MeaningVectorsOf(block.tokens, block.page_tokens, group_tokens_), dimension_};
  }
  [[nodiscard]] bool Fits(const BlockInput& block, const BlockTensor& tensor) const {
    return tensor.dtype == kDtype && std::ranges::equal(tensor.shape, ShapeOf(block));
  }
  // Return how many vectors every page of a block has.
  [[nodiscard]] std::vector<int32_t> CountsOf(int64_t tokens, int32_t page_tokens) const {
    std::vector<int32_t> counts(static_cast<size_t>((tokens - 1) / page_tokens),
                                static_cast<int32_t>(GroupsOf(page_tokens, group_tokens_)));
    counts.push_back(static_cast<int32_t>(GroupsOf((tokens - 1) % page_tokens + 1, group_tokens_)));
    return counts;
  }
  static std::span<const int8_t> NumbersOf(const BlockTensor& tensor) {
    return {reinterpret_cast<const int8_t*>(tensor.bytes.data()), tensor.bytes.size()};
  }

  std::string tensor_;
  int32_t dimension_;
  int32_t group_tokens_;
  MeaningVectors vectors_;
};

class MeaningPart final : public Part {
 public:
  MeaningPart(const PartContext& context, const MeaningOptions& options, IndexPart part)
      : context_(context),
        kind_(KindOf(part)),
        settings_(SettingsOf(options)),
        coarse_from_(options.coarse_from),
        tokens_(MeaningTensor(options.pack, part), options.dimension, options.group_tokens) {
    if (options.sentence_dimension > 0) {
      wholes_.emplace_back(SentenceTensor(options.pack), options.sentence_dimension, options.sentence_tokens);
      wholes_.emplace_back(PassageTensor(options.pack), options.sentence_dimension, context.table.page_tokens());
    }
    if (options.device != nullptr) {
      mirror_ = std::make_unique<MeaningMirror>(options.device, options.device_bytes);
    }
  }

  PartNeeds needs() const override {
    PartNeeds needs{.tensors = true, .tensor_names = {tokens_.tensor()}};
    for (const Space& whole : wholes_) needs.tensor_names.push_back(whole.tensor());
    return needs;
  }

  Status Check(const BlockInput& block) const override { return CheckTensors(block); }

  Status CheckTensors(const BlockInput& block) const override {
    EVERLONG_RETURN_IF_ERROR(tokens_.Check(block));
    for (const Space& whole : wholes_) EVERLONG_RETURN_IF_ERROR(whole.Check(block));
    return OkStatus();
  }

  Status Add(const BlockInput& block) override {
    if (tokens_.Put(block)) Mirror(PagesOf(block));
    for (Space& whole : wholes_) whole.Put(block);
    return OkStatus();
  }

  Status TensorsCame(const BlockInput& block) override {
    EVERLONG_RETURN_IF_ERROR(CheckTensors(block));
    if (tokens_.Put(block)) Mirror(PagesOf(block));
    for (Space& whole : wholes_) whole.Put(block);
    return OkStatus();
  }

  Status TensorsWent(const BlockInput& block, std::span<const std::string> names) override {
    const auto went = [&names](const Space& space) { return std::ranges::find(names, space.tensor()) != names.end(); };
    if (went(tokens_)) {
      tokens_.vectors().Forget(PagesOf(block));
      Mirror(PagesOf(block));
    }
    for (Space& whole : wholes_) {
      if (went(whole)) whole.vectors().Forget(PagesOf(block));
    }
    return OkStatus();
  }

  Status Forget(const BlockInput& block) override {
    tokens_.vectors().Forget(PagesOf(block));
    Mirror(PagesOf(block));
    for (Space& whole : wholes_) whole.vectors().Forget(PagesOf(block));
    return OkStatus();
  }

  bool Has(const BlockEntry& block) const override {
    return tokens_.vectors().Has(block.first_page) &&
           std::ranges::all_of(wholes_, [&block](const Space& whole) { return whole.vectors().Has(block.first_page); });
  }

  Result<std::vector<Ranking>> Rank(const Query& query, const PageFilter& filter, int32_t k) const override {
    EVERLONG_ASSIGN_OR_RETURN(const MeaningQuery question, Asked(query, kind_.input, tokens_));
    MeaningPages pages = PagesOfMeaning(tokens_.vectors(), context_.table, filter);
    auto whole = static_cast<float>(question.whole());
    std::optional<MeaningQuery> sentence;
    if (!wholes_.empty() && !query.Input(kSentenceInput).empty()) {
      EVERLONG_ASSIGN_OR_RETURN(sentence, Asked(query, kSentenceInput, wholes_.front()));
      whole += 2 * static_cast<float>(sentence->whole());
    }
    std::vector<int32_t> kept;  // positions of the pages that are ranked
    const size_t left = LeftOf(pages.ordinals.size(), k);
    // Signs of tokens alone save nothing where all rows are among the heaviest.
    const bool saves = sentence || question.rows() > kSignRows;
    if (saves && mirror_ == nullptr && std::cmp_greater_equal(pages.ordinals.size(), coarse_from_) &&
        2 * left < pages.ordinals.size()) {
      std::vector<MeaningScore> coarse = ScoreMeaning(question, tokens_.vectors(), pages, MeaningLevel::kSigns);
      if (sentence) AddWholes(*sentence, pages.ordinals, MeaningLevel::kSigns, coarse);
      MeaningChoice choice = ChooseMeaning(pages, coarse, left);
      pages = std::move(choice.pages);
      kept = std::move(choice.kept);
    } else {
      kept.resize(pages.ordinals.size());
      std::iota(kept.begin(), kept.end(), 0);
    }
    const std::vector<MeaningScore> all = Scores(question, pages);
    std::vector<int32_t> ordinals;
    std::vector<MeaningScore> scores;
    for (const int32_t at : kept) {
      ordinals.push_back(pages.ordinals[static_cast<size_t>(at)]);
      scores.push_back(all[static_cast<size_t>(at)]);
    }
    if (sentence) AddWholes(*sentence, ordinals, MeaningLevel::kExact, scores);
    const auto hits_by = [&](float MeaningScore::* score) {
      std::vector<Hit> hits;
      hits.reserve(scores.size());
      for (size_t at = 0; at < scores.size(); ++at) hits.push_back({ordinals[at], scores[at].*score});
      return hits;
    };
    return std::vector{Ranked(hits_by(&MeaningScore::alone), k, whole, Granularity::kPage, kind_.voice),
                       Ranked(hits_by(&MeaningScore::with_neighbours), k, static_cast<float>(question.whole()),
                              Granularity::kGroup, kind_.group_voice)};
  }

  std::string settings() const override { return settings_; }

  Status Save(const IndexFile& file, BlockRun blocks) const override {
    std::vector<int32_t> first_pages;
    for (int32_t number = blocks.first; number < blocks.last; ++number) {
      const BlockEntry& block = context_.table.block(number);
      if (!block.forgotten && Has(block)) first_pages.push_back(block.first_page);
    }
    EVERLONG_RETURN_IF_ERROR(mapped_.Check(first_pages));
    EVERLONG_ASSIGN_OR_RETURN(IndexFileWriter writer, IndexFileWriter::Create(file, kMagic));
    writer.WriteChecksumSoFar();
    writer.Align(kCacheLine);
    for (const Space* const space : Spaces()) space->WriteTo(writer, first_pages);
    return writer.Commit();
  }

  // Blocks that wait for their vectors are gaps.
  Status Load(const FilePath& file, std::span<const SavedBlock> blocks, bool /*gaps*/) override {
    EVERLONG_ASSIGN_OR_RETURN(IndexFileReader reader, IndexFileReader::OpenUnchecked(file, kMagic));
    EVERLONG_RETURN_IF_ERROR(reader.CheckSoFar());
    EVERLONG_RETURN_IF_ERROR(reader.Align(kCacheLine));
    const int32_t page_tokens = context_.table.page_tokens();
    EVERLONG_RETURN_IF_ERROR(tokens_.ReadFrom(reader, blocks, page_tokens));
    for (Space& whole : wholes_) EVERLONG_RETURN_IF_ERROR(whole.ReadFrom(reader, blocks, page_tokens));
    if (reader.left() != 0) return reader.Corrupt("it has bytes behind its end");
    PageRun all;
    for (const SavedBlock& block : blocks) {
      if (block.first_page < 0) continue;
      const auto pages = static_cast<int32_t>(GroupsOf(block.tokens, page_tokens));
      if (all.size() == 0) all.first = block.first_page;
      all.last = block.first_page + pages;
      Mirror({block.first_page, all.last});
    }
    mapped_.Add(reader.TakeMapping(), all);
    return OkStatus();
  }

  int64_t bytes() const override {
    int64_t bytes = tokens_.vectors().bytes();
    for (const Space& whole : wholes_) bytes += whole.vectors().bytes();
    return bytes;
  }
  int64_t BytesFor(int32_t pages) const override {
    const int32_t page_tokens = context_.table.page_tokens();
    int64_t bytes = tokens_.BytesFor(pages, page_tokens);
    for (const Space& whole : wholes_) bytes += whole.BytesFor(pages, page_tokens);
    return bytes;
  }

  DeviceUse device_use() const override { return mirror_ == nullptr ? DeviceUse{} : mirror_->use(); }

  std::vector<std::string> TakeMessages() const override {
    return MessagesOf(mirror_ == nullptr ? OkStatus() : mirror_->TakeFailure(), "the vectors of meaning");
  }

 private:
  static PageRun PagesOf(const BlockInput& block) { return {block.first_page, block.first_page + block.page_count()}; }
  static Result<MeaningQuery> Asked(const Query& query, std::string_view input, const Space& space) {
    EVERLONG_RETURN_IF_ERROR(query.CheckShape(input, {-1, space.dimension()}, "[rows, dimension]"));
    const std::span<const float> rows = query.Input(input);
    const int64_t tokens = std::max<int64_t>(1, std::ssize(rows) / space.dimension());
    EVERLONG_RETURN_IF_ERROR(CheckVectors(rows, tokens, space.dimension(), std::string(input).c_str()));
    return MeaningQuery(rows, space.dimension());
  }
  void Mirror(PageRun pages) {
    if (mirror_ != nullptr) mirror_->Follow(tokens_.vectors(), pages);
  }
  // Return all of it, those of tokens first.
  [[nodiscard]] std::vector<const Space*> Spaces() const {
    std::vector<const Space*> spaces{&tokens_};
    for (const Space& whole : wholes_) spaces.push_back(&whole);
    return spaces;
  }
  [[nodiscard]] std::vector<MeaningScore> Scores(const MeaningQuery& question, const MeaningPages& pages) const {
    if (mirror_ != nullptr) {
      if (auto on_device = mirror_->Scores(tokens_.vectors(), question, pages)) {
        DropImpossible(question.whole(), *on_device);
        return *std::move(on_device);
      }
    }
    return ScoreMeaning(question, tokens_.vectors(), pages, MeaningLevel::kExact);
  }
  // Add to the scores alone of pages [n] what their sentences and passages score for the question as a sentence.
  void AddWholes(const MeaningQuery& sentence, std::span<const int32_t> ordinals, MeaningLevel level,
                 std::span<MeaningScore> scores) const {
    const std::vector<float> of_sentences = ScoreAlone(sentence, wholes_[0].vectors(), ordinals, level);
    const std::vector<float> of_passages = ScoreAlone(sentence, wholes_[1].vectors(), ordinals, level);
    for (size_t at = 0; at < scores.size(); ++at) {
      scores[at].alone += of_sentences[at] + (of_passages[at] != 0 ? of_passages[at] : of_sentences[at]);
    }
  }

  const PartContext& context_;
  const PartKind& kind_;
  std::string settings_;
  int32_t coarse_from_;
  MappedPages mapped_;  // vectors of the spaces that were loaded
  Space tokens_;
  std::vector<Space> wholes_;              // of sentences, and of passages; or none
  std::unique_ptr<MeaningMirror> mirror_;  // of tokens_; none without a device
};

PartKind KindBy(const Voices& voices) {
  PartKind kind;
  kind.made = PartKind::Made::kByItsOptions;
  kind.in_segments = true;
  kind.from_pack = true;
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
  EVERLONG_RETURN_IF_ERROR(CheckOption("group_tokens", options.group_tokens, kMostGroupTokens));
  if (options.sentence_dimension == 0 && options.sentence_tokens == 0) return OkStatus();
  EVERLONG_RETURN_IF_ERROR(CheckOption("sentence_dimension", options.sentence_dimension, kMostMeaningDimension));
  return CheckOption("sentence_tokens", options.sentence_tokens, kMostGroupTokens);
}

std::string MeaningTensor(const std::string& pack, IndexPart part) {
  return std::string(NameOf(part)).append(".").append(pack);
}

std::string SentenceTensor(const std::string& pack) { return "sentence." + pack; }
std::string PassageTensor(const std::string& pack) { return "passage." + pack; }

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
  kind.tensors_of = [](const std::string& settings) { return TensorsOf(settings, IndexPart::kMeaning); };
  kind.from_model = true;
  kind.missing = "meaning_query is given, expected none: this memory has no vectors of meaning";
  return kind;
}

PartKind EncoderKind() {
  PartKind kind = KindBy(kEncoderVoices);
  kind.name = "encoder";
  kind.input = "encoder_query";
  kind.tensors_of = [](const std::string& settings) { return TensorsOf(settings, IndexPart::kEncoder); };
  kind.more_inputs = {kSentenceInput};
  kind.missing = "encoder_query is given, expected none: this memory has no vectors of an encoder";
  return kind;
}

}  // namespace everlong::index
