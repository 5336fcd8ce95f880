#include "lexical_index.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "best_first.h"
#include "page_neighbours.h"

namespace everlong::index {
namespace {

constexpr double kK1 = 1.2;
constexpr double kB = 0.75;
constexpr double kGroupPages = 3;

// It is above 0, however many pages hold the id, and in a file that lies more than there are.
double InverseDocumentFrequency(int64_t holding, int64_t pages) {
  const auto with = static_cast<double>(holding);
  const auto without = static_cast<double>(pages) - with;
  return std::max(1e-6, std::log((without + 0.5) / (with + 0.5)));
}

Status CheckTokenIds(std::span<const int32_t> token_ids) {
  const auto negative = std::ranges::find_if(token_ids, [](int32_t id) { return id < 0; });
  if (negative == token_ids.end()) return OkStatus();
  return InvalidArgumentError("token id is " + std::to_string(*negative) + ", expected 0 or more");
}

// Return what BM25 adds to an id's frequency in the denominator.
double Norm(double length, double average_length) { return kK1 * (1 - kB + kB * length / average_length); }
double Weight(double frequency, double norm) { return frequency * (kK1 + 1) / (frequency + norm); }

// One search: the scores of some ids over the pages of a filter. It costs what it takes, however many pages there are.
class Scores {
 public:
  Scores(const Postings& postings, const BlockTable& table, const PageFilter& filter)
      : all_(postings), neighbours_(table, filter), filter_(filter) {}

  // Take the postings of an id.
  void Take(const IdPostings& list) {
    auto run = filter_.runs().begin();
    list.ForEach(filter_.Range(), [&](const Posting& posting) {
      if (posting.page >= run->last) {
        run = std::ranges::upper_bound(run, filter_.runs().end(), posting.page, {}, &PageRun::last);
      }
      // A saved page that was removed is still in its file.
      if (posting.page >= run->first && all_.length(posting.page) > 0) matches_.push_back({posting, 0});
    });
    ends_.push_back(matches_.size());
  }

  // Sum up the scores once all are taken. `idf` is the weight of each id.
  void Sum(std::span<const double> idf, double average_length) {
    Number();
    Measure(average_length);
    std::vector<int32_t> counts(scored_.size(), 0);  // of the id in pages
    std::vector<int32_t> last_id(scored_.size(), -1);
    size_t begin = 0;
    for (size_t id = 0; id < ends_.size(); ++id) {
      const auto matches = std::span(matches_).subspan(begin, ends_[id] - begin);
      begin = ends_[id];
      for (const Match& match : matches) counts[match.place] = match.posting.count;
      for (const Match& match : matches) {
        Scored& page = scored_[match.place];
        page.score += idf[id] * Weight(match.posting.count, page.norm);
        for (const int32_t middle : {page.previous, static_cast<int32_t>(match.place), page.next}) {
          if (middle < 0 || last_id[static_cast<size_t>(middle)] == static_cast<int32_t>(id)) continue;
          last_id[static_cast<size_t>(middle)] = static_cast<int32_t>(id);
          Scored& group = scored_[static_cast<size_t>(middle)];
          int32_t count = counts[static_cast<size_t>(middle)];
          if (group.previous >= 0) count += counts[static_cast<size_t>(group.previous)];
          if (group.next >= 0) count += counts[static_cast<size_t>(group.next)];
          if (count > 0) group.group_score += idf[id] * Weight(count, group.group_norm);
        }
      }
      for (const Match& match : matches) counts[match.place] = 0;
    }
  }

  [[nodiscard]] LexicalIndex::Found Best(int32_t k) const {
    LexicalIndex::Found found;
    for (const Scored& page : scored_) {
      if (page.score > 0) found.pages.push_back({page.page, static_cast<float>(page.score)});
      if (page.group_score > 0) found.groups.push_back({page.page, static_cast<float>(page.group_score)});
    }
    for (std::vector<Hit>* const hits : {&found.pages, &found.groups}) {
      KeepBestFirst(*hits, static_cast<size_t>(k), [](const Hit& hit) { return hit.page; });
    }
    return found;
  }

 private:
  struct Match {
    Posting posting;
    size_t place = 0;  // of its page in scored_
  };
  // A page that has a match, or is beside one.
  struct Scored {
    int32_t page = 0;
    int32_t previous = -1;  // its neighbours, as places in scored_
    int32_t next = -1;
    double norm = 0;
    double group_norm = 0;
    double score = 0;
    double group_score = 0;
  };

  // Give all pages that score, and those beside them, their places in scored_, ascending.
  void Number() {
    std::vector<std::pair<int32_t, size_t>> by_page;  // pages and matches
    by_page.reserve(matches_.size());
    for (size_t match = 0; match < matches_.size(); ++match) by_page.emplace_back(matches_[match].posting.page, match);
    std::ranges::sort(by_page);
    std::vector<int32_t> pages;  // with those beside them
    int32_t last = -1;
    for (const auto& [page, match] : by_page) {
      if (page == std::exchange(last, page)) continue;
      const PageNeighbours::Pair beside = neighbours_.Of(page);
      for (const int32_t one : {beside.previous, page, beside.next}) {
        if (one >= 0) pages.push_back(one);
      }
    }
    std::ranges::sort(pages);
    pages.erase(std::unique(pages.begin(), pages.end()), pages.end());
    scored_.resize(pages.size());
    for (size_t place = 0; place < pages.size(); ++place) scored_[place].page = pages[place];
    size_t place = 0;
    for (const auto& [page, match] : by_page) {
      while (scored_[place].page != page) ++place;
      matches_[match].place = place;
    }
  }

  // Return the place of a page; -1 if it has none. It is nearly always `near`.
  [[nodiscard]] int32_t PlaceOf(int32_t page, size_t near) const {
    if (near < scored_.size() && scored_[near].page == page) return static_cast<int32_t>(near);
    const auto found = std::ranges::lower_bound(scored_, page, {}, &Scored::page);
    return found != scored_.end() && found->page == page ? static_cast<int32_t>(found - scored_.begin()) : -1;
  }

  void Measure(double average_length) {
    for (size_t place = 0; place < scored_.size(); ++place) {
      Scored& scored = scored_[place];
      const PageNeighbours::Pair beside = neighbours_.Of(scored.page);
      double length = all_.length(scored.page);
      scored.norm = Norm(length, average_length);
      const auto add = [&](int32_t neighbour, size_t near) {
        if (neighbour < 0) return -1;
        length += all_.length(neighbour);
        return PlaceOf(neighbour, near);
      };
      scored.previous = add(beside.previous, place - 1);  // below 0 there is none, because size_t wraps
      scored.next = add(beside.next, place + 1);
      scored.group_norm = Norm(length, kGroupPages * average_length);
    }
  }

  const Postings& all_;
  PageNeighbours neighbours_;
  const PageFilter& filter_;
  std::vector<Match> matches_;
  std::vector<size_t> ends_;  // in matches_, of each id
  std::vector<Scored> scored_;
};

}  // namespace

Status LexicalIndex::Add(int32_t page, std::span<const int32_t> token_ids) {
  EVERLONG_RETURN_IF_ERROR(CheckTokenIds(token_ids));
  postings_.Add(page, token_ids);
  return OkStatus();
}

std::vector<LexicalIndex::LookedFor> LexicalIndex::RarestIds(std::span<const int32_t> token_ids) const {
  std::vector<std::pair<int64_t, int32_t>> by_frequency;
  const TokenStatistics::Frequencies frequencies = statistics_.DocumentFrequencies(token_ids);
  for (size_t at = 0; at < token_ids.size(); ++at) {
    if (frequencies.of_ids[at] > 0) by_frequency.emplace_back(frequencies.of_ids[at], token_ids[at]);
  }
  std::ranges::sort(by_frequency);
  by_frequency.erase(std::unique(by_frequency.begin(), by_frequency.end()), by_frequency.end());
  std::vector<LookedFor> ids;
  int64_t postings = 0;
  for (const auto& [frequency, id] : by_frequency) {
    postings += frequency;
    if (!ids.empty() && (postings > kMostPostings || ids.size() == kMostIds)) break;
    ids.push_back({id, InverseDocumentFrequency(frequency, frequencies.pages)});
  }
  return ids;
}

Result<LexicalIndex::Found> LexicalIndex::Search(std::span<const int32_t> token_ids, int32_t k,
                                                 const PageFilter& filter) const {
  EVERLONG_RETURN_IF_ERROR(CheckTokenIds(token_ids));
  if (k < 1) return InvalidArgumentError("k is " + std::to_string(k) + ", expected at least 1");
  const std::vector<LookedFor> looked_for = RarestIds(token_ids);
  if (looked_for.empty() || filter.empty()) return Found();
  std::vector<int32_t> ids;
  for (const LookedFor& of : looked_for) ids.push_back(of.id);
  const Postings::Found found = postings_.Find(ids);
  Scores scores(postings_, table_, filter);
  std::vector<double> idf;
  for (size_t at = 0; at < ids.size(); ++at) {
    scores.Take(found.lists[at]);
    idf.push_back(looked_for[at].idf);
  }
  scores.Sum(idf, found.average_length);
  return scores.Best(k);
}

float LexicalIndex::WholeScore(std::span<const int32_t> token_ids) const {
  // If a page of average length has an id once, its BM25 is the id's IDF.
  double sum = 0;
  for (const LookedFor& of : RarestIds(token_ids)) sum += of.idf;
  const TokenStatistics::Frequencies frequencies = statistics_.DocumentFrequencies(token_ids);
  std::vector<int32_t> unknown;
  for (size_t at = 0; at < token_ids.size(); ++at) {
    if (frequencies.of_ids[at] == 0) unknown.push_back(token_ids[at]);
  }
  std::ranges::sort(unknown);
  const auto distinct = std::unique(unknown.begin(), unknown.end()) - unknown.begin();
  sum += static_cast<double>(distinct) * InverseDocumentFrequency(0, frequencies.pages);
  return static_cast<float>(sum);
}

Status LexicalIndex::Save(const IndexFile& file, std::span<const int32_t> kept) const {
  EVERLONG_RETURN_IF_ERROR(postings_.Check(kept));
  const PageRun range = kept.empty() ? PageRun{} : PageRun{kept.front(), kept.back() + 1};
  std::vector<int32_t> numbers(static_cast<size_t>(range.size()), -1);  // of pages of the range, in the file
  std::vector<int32_t> lengths;
  for (const int32_t page : kept) {
    numbers[static_cast<size_t>(page - range.first)] = static_cast<int32_t>(lengths.size());
    lengths.push_back(postings_.length(page));
  }
  SavedPostingsWriter writer;
  for (const Postings::Entry& entry : postings_.In(range)) {
    entry.list.ForEach(range, [&](const Posting& posting) {
      const int32_t number = numbers[static_cast<size_t>(posting.page - range.first)];
      if (number >= 0) writer.Add(number, posting.count);
    });
    writer.End(entry.id);
  }
  return writer.Commit(file, lengths);
}

Status LexicalIndex::Load(const FilePath& file, std::span<const SavedPage> pages, Lengths lengths,
                          TokenStatistics* statistics) {
  EVERLONG_ASSIGN_OR_RETURN(std::shared_ptr<const SavedPostings> saved, SavedPostings::Open(file, pages, lengths));
  return postings_.AddSaved(std::move(saved), statistics);
}

}  // namespace everlong::index
