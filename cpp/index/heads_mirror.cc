#include "heads_mirror.h"

#include <algorithm>
#include <utility>

#include "device_arrays.h"

namespace everlong::index {
namespace {

// The places of a HeadsJob's arrays in the workspace. Those that the host fills in come first.
struct JobPlaces {
  DeviceArrays places;
  int64_t pages;
  int64_t queries;
  int64_t key_heads;
  int64_t weights;
  int64_t filled_in;  // bytes
  int64_t shares;
  int64_t factors;
  int64_t mass;

  JobPlaces(int64_t page_count, int64_t blocks, int32_t head_dim)
      : pages(places.Take<HeadsPage>(page_count)),
        queries(places.Take<float>(blocks * 2 * PairsOf(head_dim) * kBlockRows)),
        key_heads(places.Take<int32_t>(blocks)),
        weights(places.Take<float>(blocks * kBlockRows)),
        filled_in(places.end()),
        shares(places.Take<PageShare>(blocks * kBlockRows * page_count)),
        factors(places.Take<RowFactor>(blocks * kBlockRows)),
        mass(places.Take<float>(page_count)) {}
  [[nodiscard]] int64_t bytes() const { return places.end(); }
};

}  // namespace

void HeadsMirror::Follow(const KeyTiles& keys) {
  const std::scoped_lock lock(mutex_);
  if (given_up_) return;
  if (Status taken = TakeIn(keys); !taken.ok()) GiveUp(std::move(taken));
}

Status HeadsMirror::TakeIn(const KeyTiles& keys) {
  int64_t coming = 0;
  for (auto page = static_cast<int32_t>(pages_.size()); page < keys.pages(); ++page) {
    coming += static_cast<int64_t>(keys.words(page).size_bytes());
  }
  while (std::ssize(pages_) < keys.pages()) {
    const auto words = std::as_bytes(keys.words(static_cast<int32_t>(pages_.size())));
    if (words.empty()) {
      pages_.push_back(nullptr);
      continue;
    }
    EVERLONG_ASSIGN_OR_RETURN(std::byte* const at, room_.Place(words, coming));
    pages_.push_back(at);
    coming -= std::ssize(words);
  }
  return OkStatus();
}

void HeadsMirror::Forget(const KeyTiles& keys, int32_t page) {
  const std::scoped_lock lock(mutex_);
  if (given_up_ || pages_[static_cast<size_t>(page)] == nullptr) return;
  std::byte* const at = std::exchange(pages_[static_cast<size_t>(page)], nullptr);
  if (Status removed = room_.Remove(at, std::ssize(std::as_bytes(keys.words(page)))); !removed.ok()) {
    GiveUp(std::move(removed));
  }
}

std::optional<std::vector<float>> HeadsMirror::Mass(const KeyTiles& keys, std::span<const RowBlock> blocks,
                                                    const PagePositions& scored, const StableVector<int32_t>& sinks) {
  std::vector<float> mass(static_cast<size_t>(scored.size()), 0.0F);
  if (scored.size() == 0 || blocks.empty()) return mass;
  const std::scoped_lock lock(mutex_);
  // A page that is being added may not be here yet.
  if (given_up_ || scored[scored.size() - 1] >= std::ssize(pages_)) return std::nullopt;
  if (Status added = AddMass(keys, blocks, scored, sinks, mass); !added.ok()) {
    failure_ = std::move(added);
    return std::nullopt;
  }
  ++scans_;
  return mass;
}

Status HeadsMirror::AddMass(const KeyTiles& keys, std::span<const RowBlock> blocks, const PagePositions& scored,
                            const StableVector<int32_t>& sinks, std::span<float> mass) {
  const int32_t dim = keys.layout().head_dim;
  const auto bytes_of = [&](int64_t count) { return JobPlaces(scored.size(), count, dim).bytes(); };
  EVERLONG_ASSIGN_OR_RETURN(const int64_t at_once, room_.BlocksAPass(std::ssize(blocks), bytes_of));
  EVERLONG_ASSIGN_OR_RETURN(std::byte* const workspace, room_.ForASearch(bytes_of(at_once)));
  std::vector<HeadsPage> pages;
  pages.reserve(mass.size());
  scored.ForEach(0, scored.size(), [&](int32_t /*position*/, int32_t page) {
    pages.push_back({ArrayAt<uint32_t>(pages_[static_cast<size_t>(page)]), keys.tokens(page), sinks[page]});
  });
  for (; !blocks.empty(); blocks = blocks.subspan(std::min(blocks.size(), static_cast<size_t>(at_once)))) {
    const auto pass = blocks.first(std::min(blocks.size(), static_cast<size_t>(at_once)));
    EVERLONG_RETURN_IF_ERROR(AddMassOfPass(keys, pass, pages, workspace, mass));
  }
  return OkStatus();
}

Status HeadsMirror::AddMassOfPass(const KeyTiles& keys, std::span<const RowBlock> pass,
                                  std::span<const HeadsPage> pages, std::byte* workspace, std::span<float> mass) {
  const JobPlaces places(std::ssize(pages), std::ssize(pass), keys.layout().head_dim);
  std::vector<std::byte> filled_in(static_cast<size_t>(places.filled_in));
  PutAt(filled_in, places.pages, std::as_bytes(pages));
  const auto numbers = static_cast<size_t>(2 * PairsOf(keys.layout().head_dim) * kBlockRows);  // of a block's queries
  for (size_t block = 0; block < pass.size(); ++block) {
    const auto queries = std::as_bytes(std::span(pass[block].rows.values(), numbers));
    const auto weights = std::as_bytes(std::span(pass[block].weights));
    const auto nth = static_cast<int64_t>(block);
    PutAt(filled_in, places.queries + nth * std::ssize(queries), queries);
    const auto key_head = std::as_bytes(std::span(&pass[block].key_head, 1));
    PutAt(filled_in, places.key_heads + nth * std::ssize(key_head), key_head);
    PutAt(filled_in, places.weights + nth * std::ssize(weights), weights);
  }
  EVERLONG_RETURN_IF_ERROR(room_.device()->Upload(workspace, filled_in));

  HeadsJob job;
  job.layout = keys.layout();
  job.page_count = std::ssize(pages);
  job.blocks = std::ssize(pass);
  job.pages = ArrayAt<HeadsPage>(workspace + places.pages);
  job.queries = ArrayAt<float>(workspace + places.queries);
  job.key_heads = ArrayAt<int32_t>(workspace + places.key_heads);
  job.weights = ArrayAt<float>(workspace + places.weights);
  job.shares = ArrayAt<PageShare>(workspace + places.shares);
  job.factors = ArrayAt<RowFactor>(workspace + places.factors);
  job.mass = ArrayAt<float>(workspace + places.mass);
  std::vector<float> of_pass(pages.size());
  EVERLONG_RETURN_IF_ERROR(room_.device()->Scan(job, of_pass));
  for (size_t at = 0; at < of_pass.size(); ++at) mass[at] += of_pass[at];
  return OkStatus();
}

void HeadsMirror::GiveUp(Status why) {
  DeviceMirror::GiveUp(std::move(why));
  pages_.clear();
}

}  // namespace everlong::index
