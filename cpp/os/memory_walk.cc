#include "memory_walk.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <string>
#include <utility>

#include "everlong/index/meaning.h"

namespace everlong::os {
namespace {

using graph::At;
using graph::WalkFeature;
using graph::WalkFeatures;
using graph::Way;
using index::IndexPart;

constexpr int32_t kStarts = 32;        // of the flat search
constexpr int32_t kFan = 16;           // pages that a load leads to, by words, by meaning, by what is left
constexpr int32_t kKnown = 256;        // pages with a known share, of each kind
constexpr size_t kNearestTopics = 2;   // topics that a question begins at
constexpr size_t kStartsOfTopics = 8;  // more pages, of these topics
constexpr size_t kWindowTokens = 24;   // the run in which a page speaks of something
constexpr size_t kAround = 16;         // tokens on either side, where it says the rest

float Rank(int32_t rank) { return 1.0F / static_cast<float>(1 + rank); }

double Norm(std::span<const float> row) {
  double square = 0;
  for (const float number : row) square += double{number} * double{number};
  return std::sqrt(square);
}

double Dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t at = 0; at < a.size(); ++at) sum += double{a[at]} * double{b[at]};
  return sum;
}

}  // namespace

MemoryWalk::MemoryWalk(const Memory::State& state, const std::optional<MeaningOptions>& meaning,
                       const SearchRequest& request, const index::PageFilter& filter,
                       std::span<const index::FusedHit> flat, std::span<const index::Ranking> rankings)
    : state_(state),
      options_(meaning),
      request_(request),
      filter_(filter),
      table_(state.index.table()),
      flat_(flat),
      question_(request.token_ids.begin(), request.token_ids.end()) {
  for (const index::Ranking& ranking : rankings) {
    const bool around = ranking.granularity == index::Granularity::kGroup;
    if (ranking.part == IndexPart::kLexical) {
      (around ? asked_words_around_ : asked_words_) = PlacesOf(ranking, true, kKnown);
    } else if (ranking.part == IndexPart::kMeaning) {
      (around ? asked_meaning_around_ : asked_meaning_) = PlacesOf(ranking, false, kKnown);
    }
  }
  for (size_t at = 0; at < flat_.size(); ++at) {
    asked_rank_.try_emplace(flat_[at].page, Place{0, static_cast<int32_t>(at)});
  }
  const auto asked = request.inputs.find("meaning_query");
  if (options_ && asked != request.inputs.end() && request.kinds.Has(IndexPart::kMeaning)) {
    dimension_ = options_->dimension;
    meaning_.assign(asked->second.begin(), asked->second.end());
    nearest_.assign(meaning_.size() / static_cast<size_t>(dimension_), 0.0F);
  }
  left_words_ = asked_words_;
  left_meaning_ = asked_meaning_;
}

MemoryWalk::Places MemoryWalk::PlacesOf(const index::Ranking& ranking, bool root, int32_t k) {
  Places places;
  for (size_t at = 0; at < ranking.hits.size() && std::cmp_less(at, k); ++at) {
    const float share = ranking.whole > 0 ? std::clamp(ranking.hits[at].score / ranking.whole, 0.0F, 1.0F) : 0.0F;
    places.try_emplace(ranking.hits[at].page, Place{root ? std::sqrt(share) : share, static_cast<int32_t>(at)});
  }
  return places;
}

double MemoryWalk::Idf(int32_t id) const {
  const auto known = idf_.find(id);
  if (known != idf_.end()) return known->second;
  const double idf = state_.index.statistics().Idf(std::span(&id, 1))[0];
  return idf_[id] = idf;
}

std::vector<int32_t> MemoryWalk::Surroundings(int32_t page) const {
  std::vector<int32_t> pages{page};
  for (int32_t i = 0; i < request_.neighbours; ++i) {
    const int32_t before = table_.Previous(pages.front());
    if (before < 0 || !filter_.Allows(before)) break;
    pages.insert(pages.begin(), before);
  }
  for (int32_t i = 0; i < request_.neighbours; ++i) {
    const int32_t after = table_.Next(pages.back());
    if (after < 0 || !filter_.Allows(after)) break;
    pages.push_back(after);
  }
  return pages;
}

bool MemoryWalk::Brings(int32_t page, int32_t other) const {
  const std::vector<int32_t> pages = Surroundings(page);
  return std::ranges::find(pages, other) != pages.end();
}

Result<std::span<const int32_t>> MemoryWalk::IdsOf(int32_t page) {
  const index::BlockEntry& block = table_.BlockOfPage(page);
  auto found = ids_.find(block.id);
  if (found == ids_.end()) {
    Result<std::vector<int32_t>> ids = state_.store->TokenIds(block.id);
    if (!ids.ok() && ids.status().code() != StatusCode::kNotFound) return ids.status();
    found = ids_.emplace(block.id, ids.ok() ? *std::move(ids) : std::vector<int32_t>()).first;  // forgotten meanwhile
  }
  const index::PageEntry entry = table_.page(page);
  const auto first = static_cast<size_t>(entry.span.begin - block.span.begin);
  const auto count = static_cast<size_t>(entry.span.size());
  if (found->second.size() < first + count) return std::span<const int32_t>();
  return std::span<const int32_t>(found->second).subspan(first, count);
}

Result<MemoryWalk::Text> MemoryWalk::TextOf(int32_t page) {
  Text text;
  for (const int32_t beside : Surroundings(page)) {
    EVERLONG_ASSIGN_OR_RETURN(const std::span<const int32_t> ids, IdsOf(beside));
    for (size_t at = 0; at < ids.size(); ++at) text.at.emplace_back(beside, static_cast<int32_t>(at));
    text.ids.insert(text.ids.end(), ids.begin(), ids.end());
  }
  return text;
}

std::pair<size_t, size_t> MemoryWalk::Window(const Text& text, const Ids& asked) const {
  const size_t count = text.ids.size();
  const size_t width = std::min(kWindowTokens, count);
  size_t best = 0;
  double most = -1;
  for (size_t first = 0; first + width <= count; ++first) {
    Ids there;
    double sum = 0;
    for (size_t at = first; at < first + width; ++at) {
      if (asked.contains(text.ids[at]) && there.insert(text.ids[at]).second) sum += Idf(text.ids[at]);
    }
    if (sum > most) {
      most = sum;
      best = first;
    }
  }
  return {best - std::min(best, kAround), std::min(count, best + width + kAround)};
}

Result<std::vector<float>> MemoryWalk::Vectors(const Text& text, size_t first, size_t last) {
  std::vector<float> rows;
  if (dimension_ == 0 || !options_) return rows;
  const auto width = static_cast<size_t>(dimension_);
  const int32_t group = options_->group_tokens;
  const int64_t of_page = (table_.page_tokens() + group - 1) / group;
  std::pair<int32_t, int64_t> before{-1, -1};
  for (size_t at = first; at < last; ++at) {
    const auto [page, place] = text.at[at];
    if (before == std::pair(page, int64_t{place / group})) continue;
    before = {page, place / group};
    const index::BlockEntry& block = table_.BlockOfPage(page);
    auto found = tensors_.find(block.id);
    if (found == tensors_.end()) {
      Result<store::Tensor> tensor = state_.store->ReadTensor(block.id, index::MeaningTensor(options_->pack));
      found = tensors_.emplace(block.id, tensor.ok() ? std::optional(*std::move(tensor)) : std::nullopt).first;
    }
    if (!found->second) continue;
    const auto row = static_cast<size_t>((page - block.first_page) * of_page + place / group);
    if (found->second->bytes.size() < (row + 1) * width) continue;
    const auto* const numbers = reinterpret_cast<const int8_t*>(found->second->bytes.data()) + row * width;
    std::vector<float> vector(numbers, numbers + width);
    const double norm = Norm(vector);
    if (!(norm > 0)) continue;
    for (const float number : vector) rows.push_back(static_cast<float>(double{number} / norm));
  }
  return rows;
}

Result<MemoryWalk::Places> MemoryWalk::ByWords(const Ids& words, int32_t k) const {
  const index::Part* const part = state_.index.part(IndexPart::kLexical);
  if (part == nullptr || words.empty() || !request_.kinds.Has(IndexPart::kLexical)) return Places();
  const std::vector<int32_t> ids(words.begin(), words.end());
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<index::Ranking> rankings, part->Rank({ids, {}}, filter_, k));
  return PlacesOf(rankings[0], true, k);
}

Result<MemoryWalk::Places> MemoryWalk::ByMeaning(std::span<const float> rows, int32_t k) const {
  const index::Part* const part = state_.index.part(IndexPart::kMeaning);
  if (part == nullptr || rows.empty() || !request_.kinds.Has(IndexPart::kMeaning)) return Places();
  index::Query query;
  query.inputs.emplace("meaning_query", rows);
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<index::Ranking> rankings, part->Rank(query, filter_, k));
  return PlacesOf(rankings[0], false, k);
}

// Find the topics nearest to the question, if the question is a point in the space of the memory's topics.
Status MemoryWalk::FindTopics() {
  const store::Manifest manifest = state_.store->manifest();
  const auto space = manifest.attributes.find(graph::kGraphAttribute);
  if (space == manifest.attributes.end()) return OkStatus();
  const std::span<const float> query = space->second.starts_with("keys")      ? request_.mean_query
                                       : space->second.starts_with("encoder") ? request_.page_query
                                                                              : std::span<const float>();
  const double norm = Norm(query);
  if (!(norm > 0)) return OkStatus();
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<store::GraphNode> nodes, state_.store->Nodes(store::NodeKind::kTopic));
  std::vector<std::pair<double, int64_t>> nearest;
  for (const store::GraphNode& node : nodes) {
    const double length = Norm(node.vector);
    if (node.level != 0 || node.vector.size() != query.size() || !(length > 0)) continue;
    nearest.emplace_back(-Dot(node.vector, query) / (length * norm), node.id);
  }
  std::ranges::sort(nearest);
  for (size_t at = 0; at < nearest.size() && at < kNearestTopics; ++at) {
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<store::GraphEdge> edges, state_.store->EdgesOf(nearest[at].second));
    for (const store::GraphEdge& edge : edges) {
      if (edge.to != nearest[at].second || edge.kind != store::EdgeKind::kBelongsTo) continue;
      topics_.try_emplace(edge.from, static_cast<float>(std::clamp(-nearest[at].first, 0.0, 1.0)));
    }
  }
  return OkStatus();
}

Result<std::set<int64_t>> MemoryWalk::BesideInTopic(int64_t block) const {
  std::set<int64_t> beside;
  const auto of_kind = [](const store::GraphEdge& edge) { return edge.kind == store::EdgeKind::kBelongsTo; };
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<store::GraphEdge> up, state_.store->EdgesOf(block));
  for (const store::GraphEdge& edge : up) {
    if (!of_kind(edge) || edge.from != block) continue;
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<store::GraphEdge> down, state_.store->EdgesOf(edge.to));
    for (const store::GraphEdge& other : down) {
      if (of_kind(other) && other.to == edge.to) beside.insert(other.from);
    }
  }
  return beside;
}

Result<std::vector<Way>> MemoryWalk::Starts() {
  EVERLONG_RETURN_IF_ERROR(FindTopics());
  std::vector<Way> starts;
  size_t of_topics = 0;
  for (size_t at = 0; at < flat_.size(); ++at) {
    const bool in_topic = topics_.contains(table_.BlockOfPage(flat_[at].page).id);
    if (at >= kStarts && (!in_topic || of_topics++ >= kStartsOfTopics)) continue;
    Way way{flat_[at].page, graph::kFromSearch, {}};
    At(way.features, WalkFeature::kFound) = 1;
    EVERLONG_RETURN_IF_ERROR(Fill(way));
    starts.push_back(way);
  }
  return starts;
}

Status MemoryWalk::Fill(Way& way) {
  const auto share = [&](const Places& places) {
    const auto found = places.find(way.node);
    return found == places.end() ? 0.0F : found->second.share;
  };
  At(way.features, WalkFeature::kAskedWords) = share(asked_words_);
  At(way.features, WalkFeature::kAskedWordsAround) = share(asked_words_around_);
  At(way.features, WalkFeature::kAskedMeaning) = share(asked_meaning_);
  At(way.features, WalkFeature::kAskedMeaningAround) = share(asked_meaning_around_);
  const auto rank = asked_rank_.find(way.node);
  At(way.features, WalkFeature::kAskedRank) = rank == asked_rank_.end() ? 0.0F : Rank(rank->second.rank);
  const auto topic = topics_.find(table_.BlockOfPage(way.node).id);
  At(way.features, WalkFeature::kTopic) = topic == topics_.end() ? 0.0F : topic->second;
  EVERLONG_ASSIGN_OR_RETURN(const std::span<const int32_t> ids, IdsOf(way.node));
  At(way.features, WalkFeature::kAskedRun) = SharedRun(request_.token_ids, question_, ids);
  Refresh(way);
  return OkStatus();
}

void MemoryWalk::Refresh(Way& way) const {
  const auto share = [&](const Places& places) {
    const auto found = places.find(way.node);
    return found == places.end() ? 0.0F : found->second.share;
  };
  At(way.features, WalkFeature::kLeftWords) = share(left_words_);
  At(way.features, WalkFeature::kLeftMeaning) = share(left_meaning_);
  RefreshStop(way.features);
}

void MemoryWalk::RefreshStop(WalkFeatures& features) const {
  double covered = 0;
  double all = 0;
  for (const int32_t id : question_) {
    all += Idf(id);
    if (covered_.contains(id)) covered += Idf(id);
  }
  At(features, WalkFeature::kCovered) = all > 0 ? static_cast<float>(covered / all) : 0.0F;
}

Status MemoryWalk::UpdateLeft(const Text& text) {
  for (const int32_t id : text.ids) {
    if (question_.contains(id)) covered_.insert(id);
  }
  Ids left;
  std::ranges::set_difference(question_, covered_, std::inserter(left, left.end()));
  EVERLONG_ASSIGN_OR_RETURN(left_words_, ByWords(left, kKnown));
  if (meaning_.empty()) return OkStatus();
  const auto width = static_cast<size_t>(dimension_);
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<float> vectors, Vectors(text, 0, text.ids.size()));
  std::vector<float> rows = meaning_;
  double weight = 0;
  for (size_t token = 0; token < nearest_.size(); ++token) {
    const auto row = std::span(meaning_).subspan(token * width, width);
    const double norm = Norm(row);
    for (size_t at = 0; at + width <= vectors.size() && norm > 0; at += width) {
      const double cosine = Dot(row, std::span(vectors).subspan(at, width)) / norm;
      nearest_[token] = std::max(nearest_[token], static_cast<float>(cosine));
    }
    const double lacks = 1 - double{nearest_[token]};
    weight += norm * lacks;
    for (size_t at = 0; at < width; ++at) {
      float& number = rows[token * width + at];
      number = static_cast<float>(double{number} * lacks);
    }
  }
  if (!(weight > 0)) return OkStatus();
  for (float& number : rows) number = static_cast<float>(double{number} / weight);
  EVERLONG_ASSIGN_OR_RETURN(left_meaning_, ByMeaning(rows, kKnown));
  return OkStatus();
}

// Return the rarest run's score, 0 to 1: the sum of its tokens' rarities, over that of four tokens of one page alone.
float MemoryWalk::SharedRun(std::span<const int32_t> text, const Ids& counted, std::span<const int32_t> page) const {
  const double one_page = std::log1p(static_cast<double>(std::max(1, table_.live_pages())));
  std::vector<double> runs(page.size() + 1, 0.0);  // ending at a token of the page, and at the one of the window
  double best = 0;
  for (const int32_t id : text) {
    const double rarity = counted.contains(id) ? Idf(id) : 0.0;
    for (size_t at = page.size(); at > 0; --at) {
      runs[at] = page[at - 1] == id ? runs[at - 1] + rarity : 0.0;
      best = std::max(best, runs[at]);
    }
  }
  return static_cast<float>(std::min(1.0, best / (4 * one_page)));
}

Result<std::vector<Way>> MemoryWalk::Load(const Way& way, int32_t number) {
  const std::vector<int32_t> pages = Surroundings(way.node);
  loaded_.insert(pages.begin(), pages.end());
  EVERLONG_ASSIGN_OR_RETURN(const Text text, TextOf(way.node));
  Left& left = left_[number];
  left.asked = way.from == graph::kFromSearch ? question_ : left_.at(way.from).asked;
  const auto [first, last] = Window(text, left.asked);
  left.window.assign(text.ids.begin() + static_cast<std::ptrdiff_t>(first),
                     text.ids.begin() + static_cast<std::ptrdiff_t>(last));
  Ids said;
  for (const int32_t id : left.window) {
    if (!left.asked.contains(id)) said.insert(id);
  }
  left.asked.insert(said.begin(), said.end());
  EVERLONG_RETURN_IF_ERROR(UpdateLeft(text));

  EVERLONG_ASSIGN_OR_RETURN(const Places by_words, ByWords(said, kKnown));
  EVERLONG_ASSIGN_OR_RETURN(std::vector<float> rows, Vectors(text, first, last));
  if (dimension_ > 0 && !rows.empty()) {
    const size_t count = rows.size() / static_cast<size_t>(dimension_);
    for (float& of : rows) of /= static_cast<float>(count);
  }
  EVERLONG_ASSIGN_OR_RETURN(const Places by_meaning, ByMeaning(rows, kKnown));
  const int64_t block = table_.BlockOfPage(way.node).id;
  EVERLONG_ASSIGN_OR_RETURN(const std::set<int64_t> in_topic, BesideInTopic(block));

  // Ascending, so that the order of ways does not depend on a hash.
  std::set<int32_t> targets;
  for (const Places* const places :
       std::initializer_list<const Places*>{&by_words, &by_meaning, &left_words_, &left_meaning_}) {
    for (const auto& [page, place] : *places) {
      if (place.rank < kFan && !loaded_.contains(page)) targets.insert(page);
    }
  }
  std::vector<Way> ways;
  const index::PageEntry here = table_.page(way.node);
  const double most = std::log1p(static_cast<double>(std::max(1, table_.live_pages())));
  for (const int32_t page : targets) {
    Way onward{page, number, {}};
    EVERLONG_RETURN_IF_ERROR(Fill(onward));
    const auto words = by_words.find(page);
    if (words != by_words.end()) {
      At(onward.features, WalkFeature::kSaidWords) = words->second.share;
      At(onward.features, WalkFeature::kSaidWordsRank) = Rank(words->second.rank);
    }
    const auto meant = by_meaning.find(page);
    if (meant != by_meaning.end()) {
      At(onward.features, WalkFeature::kSaidMeaning) = meant->second.share;
      At(onward.features, WalkFeature::kSaidMeaningRank) = Rank(meant->second.rank);
    }
    EVERLONG_ASSIGN_OR_RETURN(const std::span<const int32_t> ids, IdsOf(page));
    // Words of the question lead nowhere new.
    At(onward.features, WalkFeature::kSharedRun) = SharedRun(left.window, said, ids);
    const index::PageEntry there = table_.page(page);
    const double gap = std::log1p(static_cast<double>(std::abs(page - way.node)));
    At(onward.features, WalkFeature::kTimeGap) =
        there.stream == here.stream ? static_cast<float>(std::min(1.0, gap / most)) : 1.0F;
    At(onward.features, WalkFeature::kSameTopic) = in_topic.contains(there.block) ? 1.0F : 0.0F;
    ways.push_back(onward);
  }
  return ways;
}

}  // namespace everlong::os
