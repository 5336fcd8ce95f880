#include "meaning_mirror.h"

#include <algorithm>
#include <string>
#include <utility>

#include "device_arrays.h"

namespace everlong::index {
namespace {

// The places of a MeaningJob's arrays in the workspace. First the sums, which passes hand on. Then what the host fills
// in.
struct JobPlaces {
  DeviceArrays places;
  int64_t sums;
  int64_t pages;
  int64_t rows;
  int64_t scales;
  int64_t filled_in;  // where those end
  int64_t maxima;
  int64_t scores;

  JobPlaces(int64_t page_count, int64_t blocks, int32_t quads)
      : sums(places.Take<MeaningSum>(page_count)),
        pages(places.Take<MeaningPage>(page_count)),
        rows(places.Take<uint32_t>(blocks * quads * kMeaningRows)),
        scales(places.Take<double>(blocks * kMeaningRows)),
        filled_in(places.end()),
        maxima(places.Take<float>(blocks * page_count * kMeaningRows)),
        scores(places.Take<MeaningScore>(page_count)) {}
  [[nodiscard]] int64_t bytes() const { return places.end(); }
};

}  // namespace

void MeaningMirror::Follow(const MeaningVectors& vectors, PageRun block) {
  const std::scoped_lock lock(mutex_);
  if (given_up_) return;
  if (Status taken = TakeIn(vectors, block); !taken.ok()) GiveUp(std::move(taken));
}

Status MeaningMirror::TakeIn(const MeaningVectors& vectors, PageRun block) {
  if (const auto here = blocks_.find(block.first); here != blocks_.end()) {
    EVERLONG_RETURN_IF_ERROR(room_.Remove(here->second.at, here->second.bytes));
    blocks_.erase(here);
  }
  if (std::ssize(pages_) < block.last) pages_.resize(static_cast<size_t>(block.last), nullptr);
  const auto tiles = std::as_bytes(vectors.Tiles(block.first));
  const uint32_t* here = nullptr;
  if (!tiles.empty()) {
    if (MeaningQuadsOf(vectors.dimension()) > kMostJobQuads) {
      return CapacityError("its kernel takes vectors of up to " + std::to_string(4 * kMostJobQuads) +
                           " numbers, and these are of " + std::to_string(vectors.dimension()));
    }
    EVERLONG_ASSIGN_OR_RETURN(std::byte* const at, room_.Place(tiles, std::ssize(tiles)));
    blocks_.emplace(block.first, Block{at, std::ssize(tiles)});
    here = ArrayAt<uint32_t>(at);
  }
  std::fill(pages_.begin() + block.first, pages_.begin() + block.last, here);
  return OkStatus();
}

std::optional<std::vector<MeaningScore>> MeaningMirror::Scores(const MeaningVectors& vectors, const MeaningQuery& query,
                                                               const MeaningPages& scored) {
  std::vector<MeaningScore> scores(scored.ordinals.size());
  if (scores.empty() || query.blocks().empty()) return scores;
  const std::scoped_lock lock(mutex_);
  if (given_up_) return std::nullopt;
  std::vector<MeaningPage> pages;
  pages.reserve(scores.size());
  for (size_t at = 0; at < scores.size(); ++at) {
    const int32_t page = scored.ordinals[at];
    // A page that is being added may not be here yet.
    if (page >= std::ssize(pages_) || pages_[static_cast<size_t>(page)] == nullptr) return std::nullopt;
    const MeaningVectorRun run = vectors.Run(page);
    pages.push_back({pages_[static_cast<size_t>(page)], run.first, run.last, scored.before[at], scored.after[at]});
  }
  if (Status done = Score(query.blocks(), pages, MeaningQuadsOf(vectors.dimension()), scores); !done.ok()) {
    failure_ = std::move(done);
    return std::nullopt;
  }
  ++scans_;
  return scores;
}

Status MeaningMirror::Score(std::span<const MeaningQuery::Block> blocks, std::span<const MeaningPage> pages,
                            int32_t quads, std::span<MeaningScore> scores) {
  const auto bytes_of = [&](int64_t count) { return JobPlaces(std::ssize(pages), count, quads).bytes(); };
  EVERLONG_ASSIGN_OR_RETURN(const int64_t at_once, room_.BlocksAPass(std::ssize(blocks), bytes_of));
  EVERLONG_ASSIGN_OR_RETURN(std::byte* const workspace, room_.ForASearch(bytes_of(at_once)));
  const auto words = static_cast<size_t>(quads * kMeaningRows);  // of a block's rows
  for (size_t first = 0; first < blocks.size(); first += static_cast<size_t>(at_once)) {
    const auto pass = blocks.subspan(first, std::min(blocks.size() - first, static_cast<size_t>(at_once)));
    const JobPlaces places(std::ssize(pages), std::ssize(pass), quads);
    std::vector<std::byte> filled_in(static_cast<size_t>(places.filled_in - places.pages));
    PutAt(filled_in, 0, std::as_bytes(pages));
    for (size_t nth = 0; nth < pass.size(); ++nth) {
      const MeaningQuery::Block& block = pass[nth];
      const auto before = static_cast<int64_t>(nth);
      const auto rows = std::as_bytes(std::span(block.rows.quads(), words));
      PutAt(filled_in, places.rows - places.pages + before * std::ssize(rows), rows);
      const int64_t of_a_block = int64_t{sizeof(double)} * kMeaningRows;
      PutAt(filled_in, places.scales - places.pages + before * of_a_block, std::as_bytes(std::span(block.scales)));
    }
    EVERLONG_RETURN_IF_ERROR(room_.device()->Upload(workspace + places.pages, filled_in));

    MeaningJob job;
    job.quads = quads;
    job.pages = ArrayAt<MeaningPage>(workspace + places.pages);
    job.page_count = std::ssize(pages);
    job.blocks = std::ssize(pass);
    job.rows = ArrayAt<uint32_t>(workspace + places.rows);
    job.scales = ArrayAt<double>(workspace + places.scales);
    job.is_first = first == 0;
    job.maxima = ArrayAt<float>(workspace + places.maxima);
    job.sums = ArrayAt<MeaningSum>(workspace + places.sums);
    job.scores = ArrayAt<MeaningScore>(workspace + places.scores);
    EVERLONG_RETURN_IF_ERROR(room_.device()->Scan(job, scores));
  }
  return OkStatus();
}

void MeaningMirror::GiveUp(Status why) {
  DeviceMirror::GiveUp(std::move(why));
  blocks_.clear();
  pages_.clear();
}

}  // namespace everlong::index
