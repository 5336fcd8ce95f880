#include "heads_index.h"

#include <algorithm>
#include <cmath>
#include <limits>
#include <numbers>
#include <string>
#include <string_view>

#include "best_first.h"
#include "everlong/base/mapped_reads.h"
#include "everlong/index/index_file.h"
#include "heads_mirror.h"
#include "heads_scan.h"
#include "key_codes.h"

namespace everlong::index {
namespace {

// A pass keeps a sum for every page and row, so longer questions take several passes.
constexpr int64_t kWorkspaceBytes = int64_t{32} << 20;
// How many pages the coarse level leaves to be scored exactly: a tenth of few, and a twentieth of many.
constexpr size_t kShareOfFew = 10;
constexpr size_t kShareOfMany = 20;
constexpr size_t kOfFew = 1'024;
constexpr size_t kFewestSurvivors = 64;
constexpr size_t kMostSurvivors = 4'096;
// The coarse level asks by the heaviest tokens of a question, so many or a multiple, that carry this share of its
// weight.
constexpr size_t kCoarseTokens = 8;
constexpr double kCarriedShare = 0.8;
// The pages that say how far the coarse scores of those left out are from the exact ones.
constexpr int32_t kSampled = 512;
size_t SurvivorsOf(size_t pages) {
  const size_t some = std::max(std::min(pages / kShareOfFew, kOfFew), pages / kShareOfMany);
  return std::clamp(some, kFewestSurvivors, kMostSurvivors);
}
// How many of the best pages by the coarse level bring their neighbours, because those count in the score of a group.
constexpr size_t kWidened = 128;
// The pages whose keys are read from a file at a time, when the index is saved.
constexpr size_t kReadAtOnce = 512;
// Longer keys have no coarse level: their values along its axes might overflow.
constexpr double kLongestCoarse = 1e18;

std::string MagicOf(KeyStorage keys) {
  std::string magic("everlong heads ");
  if (keys != KeyStorage::kBf16) magic.append(NameOf(keys)).append(" ");
  return magic.append("3\n");
}
struct Header {
  int32_t head_dim = 0;
  int32_t heads = 0;
  int64_t pages = 0;
  int32_t has_coarse = 0;  // 0 or 1
  int32_t zero = 0;
};
struct PageHeader {
  int32_t tokens = 0;
  int32_t sinks = 0;
};

bool AllFinite(std::span<const float> values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

// Return the distinct key heads of `heads` in order of first use.
std::vector<KeyHead> DistinctKeyHeads(const std::vector<RetrievalHead>& heads) {
  std::vector<KeyHead> distinct;
  for (const RetrievalHead& head : heads) {
    const KeyHead key{head.layer, head.kv_head};
    if (std::ranges::find(distinct, key) == distinct.end()) distinct.push_back(key);
  }
  return distinct;
}

// Return the tokens that have a weight, the heaviest first.
std::vector<size_t> HeaviestFirst(std::span<const float> weights) {
  std::vector<size_t> tokens;
  for (size_t token = 0; token < weights.size(); ++token) {
    if (weights[token] != 0) tokens.push_back(token);
  }
  std::ranges::stable_sort(tokens, [&](size_t a, size_t b) { return weights[a] > weights[b]; });
  return tokens;
}

// Return the heads of a key head with each token that has a weight, in order: (head, token). The rows of a softmax are
// summed in this order, so without a coarse level it stays the heads'. With a `rank` of the tokens it is theirs.
std::vector<std::pair<size_t, size_t>> RowsOf(std::span<const float> weights, std::span<const int32_t> head_to_key,
                                              int32_t key_head, const std::vector<size_t>* rank) {
  std::vector<std::pair<size_t, size_t>> rows;
  for (size_t head = 0; head < head_to_key.size(); ++head) {
    if (head_to_key[head] != key_head) continue;
    for (size_t token = 0; token < weights.size(); ++token) {
      if (weights[token] != 0) rows.emplace_back(head, token);
    }
  }
  if (rank != nullptr) {
    std::ranges::stable_sort(rows, {}, [&](const auto& row) { return (*rank)[row.second]; });
  }
  return rows;
}

// Return how many of these tokens, the heaviest first, the coarse level asks by.
size_t CoarseTokensOf(std::span<const float> weights, std::span<const size_t> tokens) {
  double all = 0;
  for (const size_t token : tokens) all += weights[token];
  double carried = 0;
  size_t count = 0;
  while (count < tokens.size() && (count % kCoarseTokens != 0 || carried < kCarriedShare * all)) {
    carried += weights[tokens[count++]];
  }
  return count;
}

// Split the blocks into passes, so that the sums over `pages` pages fit the workspace.
std::vector<std::span<const RowBlock>> Passes(std::span<const RowBlock> blocks, int32_t pages) {
  const auto bytes_a_block = static_cast<int64_t>(static_cast<size_t>(pages) * kBlockRows * sizeof(float));
  const auto blocks_a_pass = static_cast<size_t>(std::max<int64_t>(1, kWorkspaceBytes / bytes_a_block));
  std::vector<std::span<const RowBlock>> passes;
  for (size_t first = 0; first < blocks.size(); first += blocks_a_pass) {
    passes.push_back(blocks.subspan(first, std::min(blocks_a_pass, blocks.size() - first)));
  }
  return passes;
}

// Return about kSampled pages of `scored` at equal distances, without those of `left`. They depend on no question.
PageFilter SampleOf(const PagePositions& scored, const PageFilter& left) {
  PageFilter sample;
  const int32_t step = std::max(1, scored.size() / kSampled);
  for (int32_t position = step / 2; position < scored.size(); position += step) {
    const int32_t page = scored[position];
    if (!left.Allows(page)) sample.Add({page, page + 1});
  }
  return sample;
}

// The sums of some pages in a row's softmax.
struct RowTotals {
  double exact = 0;
  double coarse = 0;
};

// Return the part of a row's softmax that the survivors have. That of the other pages is known from the coarse level,
// whose sums, of the largest score in a page, are smaller: how much smaller is what a sample of these pages says. Of a
// row that the coarse level does not have, all pages score 0 there: so the sample's mean stands for each of the others.
double ShareOf(const RowTotals& survivors, const RowTotals& sample, double coarse_total) {
  if (!(coarse_total > 0)) return 0;
  const double rest = std::max(0.0, coarse_total - survivors.coarse);
  if (survivors.exact > 0 && sample.coarse > 0) {
    return survivors.exact / (survivors.exact + rest * (sample.exact / sample.coarse));
  }
  return survivors.coarse / coarse_total;
}

}  // namespace

HeadsIndex::HeadsIndex(std::vector<RetrievalHead> heads, int32_t head_dim, HeadsOptions options)
    : heads_(std::move(heads)),
      key_heads_(DistinctKeyHeads(heads_)),
      head_dim_(head_dim),
      coarse_from_(options.coarse_from),
      keys_(static_cast<int32_t>(key_heads_.size()), head_dim, options.keys),
      searched_coarse_(std::make_unique<std::atomic<const CoarseKeys*>>(nullptr)) {
  for (const RetrievalHead& head : heads_) {
    const auto found = std::ranges::find(key_heads_, KeyHead{head.layer, head.kv_head});
    head_to_key_.push_back(static_cast<int32_t>(found - key_heads_.begin()));
  }
  if (options.device != nullptr && !key_heads_.empty()) {
    mirror_ = std::make_unique<HeadsMirror>(std::move(options.device), options.device_bytes);
  }
}

HeadsIndex::HeadsIndex(HeadsIndex&&) noexcept = default;
HeadsIndex& HeadsIndex::operator=(HeadsIndex&&) noexcept = default;
HeadsIndex::~HeadsIndex() = default;

Status HeadsIndex::Add(std::span<const float> keys, int32_t tokens, int32_t sink_tokens) {
  if (tokens < 1) return InvalidArgumentError("page of " + std::to_string(tokens) + " tokens, expected at least 1");
  if (sink_tokens < 0 || sink_tokens > tokens) {
    return InvalidArgumentError("sink_tokens is " + std::to_string(sink_tokens) + ", expected 0 to " +
                                std::to_string(tokens));
  }
  const size_t expected = key_heads_.size() * static_cast<size_t>(tokens) * static_cast<size_t>(head_dim_);
  if (keys.size() != expected) {
    return InvalidArgumentError("keys of " + std::to_string(keys.size()) + " numbers, expected " +
                                std::to_string(expected));
  }
  EVERLONG_RETURN_IF_ERROR(keys_.Add(keys, tokens));
  page_sinks_.push_back(sink_tokens);
  FollowKeys();
  return OkStatus();
}

void HeadsIndex::FollowKeys() {
  FollowCoarse();
  if (mirror_ != nullptr) mirror_->Follow(keys_);
}

void HeadsIndex::FollowCoarse() {
  if (key_heads_.empty() || pages() < coarse_from_ || has_no_coarse_) return;
  has_no_coarse_ = std::ranges::any_of(keys_.longest(), [](double longest) { return longest > kLongestCoarse; });
  if (!has_no_coarse_) {
    if (coarse_ == nullptr) coarse_ = std::make_unique<CoarseKeys>(static_cast<int32_t>(key_heads_.size()), head_dim_);
    // Only a file can give keys that are no numbers.
    has_no_coarse_ =
        !coarse_->learned() && !coarse_->Learn(keys_, page_sinks_, std::min(std::max(coarse_from_, 1), pages()));
    if (!has_no_coarse_) coarse_->Follow(keys_);
  }
  // Searches score every page until all of this is there. The object itself stays, because they may be using it.
  searched_coarse_->store(has_no_coarse_ ? nullptr : coarse_.get());
}

void HeadsIndex::SkipTo(int32_t page) {
  if (page <= pages()) return;
  while (pages() < page) {
    keys_.AddEmpty();
    page_sinks_.push_back(0);
  }
  FollowKeys();
}

void HeadsIndex::Forget(int32_t page) {
  if (page >= pages()) return;
  if (mirror_ != nullptr) mirror_->Forget(keys_, page);
  if (coarse_ != nullptr && page < coarse_->pages()) coarse_->Forget(page, keys_.tokens(page));  // it may have stopped
  keys_.Forget(page);
  page_sinks_[page] = 0;
}

Status HeadsIndex::CheckQuery(std::span<const float> q, std::span<const float> weights) const {
  const size_t expected = weights.size() * heads_.size() * static_cast<size_t>(head_dim_);
  if (q.size() != expected) {
    return InvalidArgumentError("q of " + std::to_string(q.size()) + " numbers for " + std::to_string(weights.size()) +
                                " weights, expected " + std::to_string(expected));
  }
  if (!AllFinite(q)) return InvalidArgumentError("q holds a NaN or an infinity");
  if (!AllFinite(weights)) return InvalidArgumentError("weights hold a NaN or an infinity");
  const auto negative = std::ranges::find_if(weights, [](float weight) { return weight < 0; });
  if (negative != weights.end()) {
    return InvalidArgumentError("weight is " + std::to_string(*negative) + ", expected 0 or more");
  }
  return OkStatus();
}

Result<std::vector<RowBlock>> HeadsIndex::MakeRowBlocks(std::span<const float> q, std::span<const float> weights,
                                                        const CoarseKeys* coarse) const {
  std::vector<RowBlock> blocks;
  const auto dim = static_cast<size_t>(head_dim_);
  const double scale = std::numbers::log2e / std::sqrt(static_cast<double>(head_dim_));
  std::vector<float> scaled(dim);
  std::vector<float> along_axes(static_cast<size_t>(CoarseKeys::DimsOf(head_dim_)));
  const std::vector<size_t> tokens = HeaviestFirst(weights);
  const size_t coarse_tokens = coarse == nullptr ? 0 : CoarseTokensOf(weights, tokens);
  std::vector<size_t> rank(weights.size());
  for (size_t at = 0; at < tokens.size(); ++at) rank[tokens[at]] = at;
  for (int32_t key_head = 0; key_head < static_cast<int32_t>(key_heads_.size()); ++key_head) {
    int32_t row = kBlockRows;
    for (const auto& [head, token] : RowsOf(weights, head_to_key_, key_head, coarse == nullptr ? nullptr : &rank)) {
      if (row == kBlockRows) {
        blocks.push_back({key_head, QueryRows(head_dim_), CoarseRows(CoarseKeys::DimsOf(head_dim_))});
        row = 0;
      }
      RowBlock& block = blocks.back();
      const float* const query = q.data() + (token * heads_.size() + head) * dim;
      double square = 0;
      for (size_t i = 0; i < dim; ++i) {
        const double element = query[i] * scale;
        square += element * element;
        scaled[i] = static_cast<float>(element);
      }
      // By Cauchy and Schwarz no partial sum of a score is larger. Rounding to bf16 adds a 256th.
      const double bound = std::sqrt(square) * keys_.longest(key_head) * 1.01;
      if (bound > std::numeric_limits<float>::max() / 4) {
        return InvalidArgumentError("q of question token " + std::to_string(token) +
                                    " is so large that its scores overflow");
      }
      block.rows.Set(row, scaled);
      if (rank[token] < coarse_tokens) {
        coarse->Project(key_head, scaled, along_axes);
        block.coarse_rows.Set(row, along_axes);
      }
      block.bounds[row] = bound;
      block.weights[row++] = weights[token];
    }
  }
  return blocks;
}

PageFilter HeadsIndex::ScoredPages(const PageFilter& filter) const {
  PageFilter scored;
  const int32_t count = pages();
  for (const PageRun& run : filter.runs()) {
    const int32_t last = std::min(run.last, count);
    for (int32_t page = run.first; page < last;) {
      const auto has_tokens = [&](int32_t at) { return page_sinks_[at] < keys_.tokens(at); };
      int32_t end = page;
      while (end < last && has_tokens(end)) ++end;
      scored.Add({page, end});
      page = end + 1;
    }
  }
  return scored;
}

std::vector<float> HeadsIndex::MassOf(std::span<const RowBlock> blocks, const PagePositions& scored) const {
  std::vector<float> mass(static_cast<size_t>(scored.size()), 0.0F);
  if (mass.empty()) return mass;
  const ScannedKeys keys = {keys_, head_dim_, page_sinks_};
  for (const std::span<const RowBlock> pass : Passes(blocks, scored.size())) {
    const HeadsScan scan(keys, pass, scored, ReferencesOf(keys, pass, scored));
    scan.AddMass(std::vector<double>(pass.size() * kBlockRows, 1.0), mass);
  }
  return mass;
}

HeadsIndex::Survivors HeadsIndex::MassOfSurvivors(std::span<const RowBlock> blocks, const PageFilter& pages,
                                                  const CoarseKeys& coarse_keys, const Beside& beside) const {
  const PagePositions scored(pages);
  const ScannedKeys coarse = {keys_, head_dim_, page_sinks_, &coarse_keys};
  const auto passes = Passes(blocks, scored.size());
  std::vector<std::vector<float>> references;
  std::vector<std::vector<double>> totals;
  std::vector<float> mass(static_cast<size_t>(scored.size()), 0.0F);
  for (const std::span<const RowBlock> pass : passes) {
    references.push_back(ReferencesOf(coarse, pass, scored));
    const HeadsScan scan(coarse, pass, scored, references.back());
    std::vector<double> asked(pass.size() * kBlockRows);
    for (size_t block = 0; block < pass.size(); ++block) {
      std::fill_n(asked.begin() + static_cast<std::ptrdiff_t>(block * kBlockRows), pass[block].coarse_rows.count(),
                  1.0);
    }
    scan.AddMass(asked, mass);
    totals.emplace_back(scan.totals().begin(), scan.totals().end());
  }
  std::vector<Hit> hits;
  hits.reserve(mass.size());
  scored.ForEach(0, scored.size(),
                 [&](int32_t position, int32_t page) { hits.push_back({page, mass[static_cast<size_t>(position)]}); });
  KeepBestFirst(hits, SurvivorsOf(mass.size()), [](const Hit& hit) { return hit.page; });
  std::vector<int32_t> chosen;
  for (const Hit& hit : hits) chosen.push_back(hit.page);
  if (beside != nullptr) {
    for (const Hit& hit : std::span(hits).first(std::min(hits.size(), kWidened))) {
      const PageNeighbours::Pair neighbours = beside(hit.page);
      for (const int32_t page : {neighbours.previous, neighbours.next}) {
        if (page >= 0 && pages.Allows(page)) chosen.push_back(page);
      }
    }
  }
  std::ranges::sort(chosen);
  chosen.erase(std::unique(chosen.begin(), chosen.end()), chosen.end());
  Survivors left;
  for (const int32_t page : chosen) left.pages.Add({page, page + 1});
  const PagePositions survivors(left.pages);

  const PageFilter sampled = SampleOf(scored, left.pages);
  const PagePositions sample(sampled);

  left.mass.resize(chosen.size(), 0.0F);
  const ScannedKeys exact = {keys_, head_dim_, page_sinks_};
  for (size_t at = 0; at < passes.size(); ++at) {
    const std::vector<float> exact_references = ReferencesOf(exact, passes[at], survivors);
    const HeadsScan scan(exact, passes[at], survivors, exact_references);
    const HeadsScan coarse_scan(coarse, passes[at], survivors, references[at]);
    const HeadsScan of_sample(exact, passes[at], sample, exact_references);
    const HeadsScan coarse_of_sample(coarse, passes[at], sample, references[at]);
    std::vector<double> shares(totals[at].size());
    for (size_t row = 0; row < shares.size(); ++row) {
      shares[row] = ShareOf({scan.totals()[row], coarse_scan.totals()[row]},
                            {of_sample.totals()[row], coarse_of_sample.totals()[row]}, totals[at][row]);
    }
    scan.AddMass(shares, left.mass);
  }
  return left;
}

Result<std::vector<Hit>> HeadsIndex::Scored(std::span<const float> q, std::span<const float> weights,
                                            const PageFilter& filter, const Beside& beside) const {
  EVERLONG_RETURN_IF_ERROR(CheckQuery(q, weights));
  PageFilter pages = ScoredPages(filter);
  const CoarseKeys* coarse = searched_coarse_->load();
  if (pages.Count() < coarse_from_ || std::cmp_less_equal(pages.Count(), kFewestSurvivors) ||
      (coarse != nullptr && pages.Range().last > coarse->pages())) {
    coarse = nullptr;
  }
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<RowBlock> blocks, MakeRowBlocks(q, weights, coarse));
  std::vector<float> mass;
  std::optional<std::vector<float>> on_device;
  if (mirror_ != nullptr) on_device = mirror_->Mass(keys_, blocks, PagePositions(pages), page_sinks_);
  if (on_device) {
    mass = *std::move(on_device);
  } else if (coarse != nullptr) {
    Survivors survivors = MassOfSurvivors(blocks, pages, *coarse, beside);
    pages = std::move(survivors.pages);
    mass = std::move(survivors.mass);
  } else {
    mass = MassOf(blocks, PagePositions(pages));
  }
  std::vector<Hit> hits;
  PagePositions(pages).ForEach(0, pages.Count(), [&](int32_t position, int32_t page) {
    if (mass[static_cast<size_t>(position)] > 0) hits.push_back({page, mass[static_cast<size_t>(position)]});
  });
  return hits;
}

Status HeadsIndex::Save(const IndexFile& file, std::span<const int32_t> kept) const {
  EVERLONG_RETURN_IF_ERROR(mapped_.Check(kept));
  EVERLONG_ASSIGN_OR_RETURN(IndexFileWriter writer, IndexFileWriter::Create(file, MagicOf(keys_.storage())));
  const bool has_coarse = coarse_ != nullptr && (kept.empty() || kept.back() < coarse_->pages());
  writer.WriteValue(Header{head_dim_, static_cast<int32_t>(heads_.size()), std::ssize(kept), has_coarse ? 1 : 0});
  writer.WriteAll(std::span(heads_));
  writer.WriteAll(std::span<const double>(keys_.longest()));
  for (const int32_t page : kept) writer.WriteValue(PageHeader{keys_.tokens(page), page_sinks_[page]});
  if (has_coarse) {
    const CoarseAxes& axes = coarse_->axes();
    for (const std::vector<float>* table : {&axes.axes, &axes.least, &axes.steps}) writer.WriteAll(std::span(*table));
  }
  writer.WriteChecksumSoFar();
  writer.Align(kCacheLine);
  for (const int32_t page : kept) {
    if (has_coarse) writer.WriteAll(coarse_->words(page, keys_.tokens(page)));
  }
  for (size_t at = 0; at < kept.size(); ++at) {
    if (at % kReadAtOnce == 0) {
      SoonReads soon;
      for (const int32_t page : kept.subspan(at, std::min(kReadAtOnce, kept.size() - at))) keys_.ReadSoon(page, soon);
    }
    writer.WriteAll(keys_.words(kept[at]));
  }
  return writer.Commit();
}

Result<bool> HeadsIndex::LoadAxes(IndexFileReader& reader) {
  CoarseKeys made(static_cast<int32_t>(key_heads_.size()), head_dim_);
  CoarseAxes axes = made.Empty();
  for (std::vector<float>* table : {&axes.axes, &axes.least, &axes.steps}) {
    EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(*table)));
  }
  if (!made.Use(std::move(axes))) return reader.Corrupt("an axis of its keys is out of range");
  if (coarse_ != nullptr) return coarse_->axes() == made.axes();
  coarse_ = std::make_unique<CoarseKeys>(std::move(made));
  return true;
}

Status HeadsIndex::Load(const FilePath& file, std::span<const int32_t> ordinals) {
  EVERLONG_ASSIGN_OR_RETURN(IndexFileReader reader, IndexFileReader::OpenUnchecked(file, MagicOf(keys_.storage())));
  Header header;
  EVERLONG_RETURN_IF_ERROR(reader.ReadValue(header));
  if (header.head_dim != head_dim_ || header.heads != std::ssize(heads_)) return reader.Corrupt("of other heads");
  if (header.pages != std::ssize(ordinals)) return reader.Corrupt("of other pages");
  std::vector<RetrievalHead> saved(heads_.size());
  EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(saved)));
  if (saved != heads_) return reader.Corrupt("of other heads");
  std::vector<double> longest(key_heads_.size());
  EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(longest)));
  const double most = 1.001 * std::sqrt(static_cast<double>(head_dim_)) * kLargestBf16;
  if (!std::ranges::all_of(longest, [most](double length) { return length >= 0 && length <= most; })) {
    return reader.Corrupt("the length of a key is out of range");
  }
  if (ordinals.size() > reader.left() / sizeof(PageHeader)) return reader.Truncated();
  std::vector<PageHeader> headers(ordinals.size());
  EVERLONG_RETURN_IF_ERROR(reader.ReadAll(std::span(headers)));
  const bool in_range = std::ranges::all_of(
      headers, [](const PageHeader& page) { return page.tokens >= 1 && page.sinks >= 0 && page.sinks <= page.tokens; });
  if (!in_range) return reader.Corrupt("a page out of range");
  bool uses_coarse = false;
  if (header.has_coarse != 0) {
    EVERLONG_ASSIGN_OR_RETURN(uses_coarse, LoadAxes(reader));
  }
  EVERLONG_RETURN_IF_ERROR(reader.CheckSoFar());
  EVERLONG_RETURN_IF_ERROR(reader.Align(kCacheLine));
  std::vector<std::span<const uint32_t>> codes(headers.size());
  const CoarseKeys shape(static_cast<int32_t>(key_heads_.size()), head_dim_);
  for (size_t page = 0; page < headers.size() && header.has_coarse != 0; ++page) {
    EVERLONG_ASSIGN_OR_RETURN(codes[page], reader.ReadMapped<uint32_t>(shape.PageWords(headers[page].tokens)));
  }
  EVERLONG_ASSIGN_OR_RETURN(const std::span<const uint32_t> begin, reader.ReadMapped<uint32_t>(0));
  const int32_t here = pages();
  if (uses_coarse) coarse_->Follow(keys_);  // of older files without codes
  for (size_t page = 0; page < headers.size(); ++page) {
    const auto [tokens, sinks] = headers[page];
    EVERLONG_ASSIGN_OR_RETURN(const std::span<const uint32_t> words,
                              reader.ReadMapped<uint32_t>(keys_.PageWords(tokens)));
    if (ordinals[page] < 0) continue;
    EVERLONG_CHECK(ordinals[page] >= pages());
    while (pages() < ordinals[page]) {
      keys_.AddEmpty();
      page_sinks_.push_back(0);
    }
    if (uses_coarse) {
      coarse_->Follow(keys_);
      coarse_->AddMapped(codes[page]);
    }
    keys_.AddMapped(words, tokens);
    page_sinks_.push_back(sinks);
  }
  if (reader.left() != 0) return reader.Corrupt("it has bytes behind its end");
  // Without codes every search reads all keys.
  EVERLONG_ASSIGN_OR_RETURN(const std::span<const uint32_t> end, reader.ReadMapped<uint32_t>(0));
  if (header.has_coarse != 0) ReadByThemselves(std::span(begin.data(), end.data()));
  mapped_.Add(reader.TakeMapping(), {here, pages()});
  keys_.AddLongest(longest);
  FollowKeys();
  return OkStatus();
}

HeadsOptions HeadsIndex::options() const {
  HeadsOptions options{coarse_from_, keys_.storage(), nullptr, 0};
  if (mirror_ != nullptr) {
    options.device = mirror_->device();
    options.device_bytes = mirror_->most_bytes();
  }
  return options;
}

DeviceUse HeadsIndex::device_use() const { return mirror_ == nullptr ? DeviceUse{} : mirror_->use(); }

Status HeadsIndex::TakeDeviceFailure() const { return mirror_ == nullptr ? OkStatus() : mirror_->TakeFailure(); }

int64_t HeadsIndex::bytes() const {
  return keys_.bytes() + page_sinks_.bytes() + (coarse_ == nullptr ? 0 : coarse_->bytes());
}

}  // namespace everlong::index
