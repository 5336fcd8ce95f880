#include "memory_walk.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <iterator>
#include <limits>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "everlong/index/meaning.h"
#include "everlong/index/part_kinds.h"

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

float Rank(int32_t rank) { return 1.0F / static_cast<float>(1 + rank); }

double Dot(std::span<const float> a, std::span<const float> b) {
  double sum = 0;
  for (size_t at = 0; at < a.size(); ++at) sum += double{a[at]} * double{b[at]};
  return sum;
}

std::string_view MeaningInput() { return index::KindOf(IndexPart::kMeaning).input; }

bool AsksByMeaning(const SearchRequest& request) {
  return request.inputs.contains(MeaningInput()) && request.kinds.Has(IndexPart::kMeaning);
}

}  // namespace

MemoryWalk::MemoryWalk(const MemoryState& state, const SearchRequest& request, const index::PageFilter& filter,
                       std::span<const index::FusedHit> flat, std::span<const index::Ranking> rankings)
    : state_(state),
      request_(request),
      filter_(filter),
      table_(state.index.table()),
      flat_(flat),
      texts_(state, AsksByMeaning(request) ? state.meaning.at(IndexPart::kMeaning.number).Get() : std::nullopt,
             request.neighbours, filter),
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
  if (const std::optional<MeaningOptions>& meaning = texts_.options()) {
    const std::span<const float> asked = request.inputs.find(MeaningInput())->second.numbers;
    dimension_ = meaning->dimension;
    meaning_.assign(asked.begin(), asked.end());
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

bool MemoryWalk::Brings(int32_t page, int32_t other) const {
  const std::vector<int32_t> pages = texts_.Surroundings(page);
  return std::ranges::find(pages, other) != pages.end();
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
  query.inputs.emplace(MeaningInput(), index::InputArray{rows});
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<index::Ranking> rankings, part->Rank(query, filter_, k));
  return PlacesOf(rankings[0], false, k);
}

// Find the topics nearest to the question, if the question is a point in the space of the memory's topics.
Status MemoryWalk::FindTopics() {
  const store::Manifest manifest = state_.store->manifest();
  const auto space = manifest.attributes.find(graph::kGraphAttribute);
  if (space == manifest.attributes.end()) return OkStatus();
  std::optional<IndexPart> by;
  if (space->second.starts_with("keys")) by = IndexPart::kMeanPool;
  if (space->second.starts_with("encoder")) by = IndexPart::kEmbedding;
  const index::Query asked{request_.token_ids, request_.inputs};
  const std::span<const float> query = by ? asked.Input(index::KindOf(*by).input) : std::span<const float>();
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
  EVERLONG_ASSIGN_OR_RETURN(const std::span<const int32_t> ids, texts_.IdsOf(way.node));
  At(way.features, WalkFeature::kAskedRun) = texts_.SharedRun(request_.token_ids, question_, ids);
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
    all += texts_.Idf(id);
    if (covered_.contains(id)) covered += texts_.Idf(id);
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
  const std::vector<float> vectors = texts_.Vectors(text, 0, text.ids.size());
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

Result<std::vector<Way>> MemoryWalk::Load(const Way& way, int32_t number) {
  const std::vector<int32_t> pages = texts_.Surroundings(way.node);
  loaded_.insert(pages.begin(), pages.end());
  EVERLONG_ASSIGN_OR_RETURN(const Text text, texts_.TextOf(way.node));
  Ids& asked = asked_[number];
  asked = way.from == graph::kFromSearch ? question_ : asked_.at(way.from);
  const auto [first, last] = texts_.Window(text, asked);
  Said said;
  said.window = std::span(text.ids).subspan(first, last - first);
  for (const int32_t id : said.window) {
    if (!asked.contains(id)) said.words.insert(id);
  }
  asked.insert(said.words.begin(), said.words.end());
  EVERLONG_RETURN_IF_ERROR(UpdateLeft(text));

  EVERLONG_ASSIGN_OR_RETURN(said.by_words, ByWords(said.words, kKnown));
  std::vector<float> rows = texts_.Vectors(text, first, last);
  if (dimension_ > 0 && !rows.empty()) {
    const size_t count = rows.size() / static_cast<size_t>(dimension_);
    for (float& of : rows) of /= static_cast<float>(count);
  }
  EVERLONG_ASSIGN_OR_RETURN(said.by_meaning, ByMeaning(rows, kKnown));
  EVERLONG_ASSIGN_OR_RETURN(said.in_topic, BesideInTopic(table_.BlockOfPage(way.node).id));

  // Ascending, so that the order of ways does not depend on a hash.
  std::set<int32_t> targets;
  for (const Places* const places :
       std::initializer_list<const Places*>{&said.by_words, &said.by_meaning, &left_words_, &left_meaning_}) {
    for (const auto& [page, place] : *places) {
      if (place.rank < kFan && !loaded_.contains(page)) targets.insert(page);
    }
  }
  std::vector<Way> ways;
  for (const int32_t page : targets) {
    Way onward{page, number, {}};
    EVERLONG_RETURN_IF_ERROR(FillOnward(way.node, said, onward));
    ways.push_back(onward);
  }
  return ways;
}

Status MemoryWalk::FillOnward(int32_t from, const Said& said, Way& onward) {
  EVERLONG_RETURN_IF_ERROR(Fill(onward));
  const auto words = said.by_words.find(onward.node);
  if (words != said.by_words.end()) {
    At(onward.features, WalkFeature::kSaidWords) = words->second.share;
    At(onward.features, WalkFeature::kSaidWordsRank) = Rank(words->second.rank);
  }
  const auto meant = said.by_meaning.find(onward.node);
  if (meant != said.by_meaning.end()) {
    At(onward.features, WalkFeature::kSaidMeaning) = meant->second.share;
    At(onward.features, WalkFeature::kSaidMeaningRank) = Rank(meant->second.rank);
  }
  EVERLONG_ASSIGN_OR_RETURN(const std::span<const int32_t> ids, texts_.IdsOf(onward.node));
  // Words of the question lead nowhere new.
  At(onward.features, WalkFeature::kSharedRun) = texts_.SharedRun(said.window, said.words, ids);
  const index::PageEntry there = table_.page(onward.node);
  const double most = std::log1p(static_cast<double>(std::max(1, table_.live_pages())));
  const double gap = std::log1p(static_cast<double>(std::abs(onward.node - from)));
  At(onward.features, WalkFeature::kTimeGap) =
      there.stream == table_.page(from).stream ? static_cast<float>(std::min(1.0, gap / most)) : 1.0F;
  At(onward.features, WalkFeature::kSameTopic) = said.in_topic.contains(there.block) ? 1.0F : 0.0F;
  return OkStatus();
}

}  // namespace everlong::os
