#include "heads_mirror.h"

#include <algorithm>
#include <string>
#include <utility>

namespace everlong::index {
namespace {

// Small memories take little of a device, large ones few allocations.
constexpr int64_t kFirstSlabBytes = int64_t{1} << 20;
constexpr int64_t kLargestSlabBytes = int64_t{64} << 20;
// A pass keeps a share for every page and row; longer questions take several passes.
constexpr int64_t kPassBytes = int64_t{64} << 20;

// Arrays one after the other, each where the device's widest access may begin.
class Places {
 public:
  template <class T>
  int64_t Take(int64_t count) {
    const int64_t at = end_;
    end_ += (count * static_cast<int64_t>(sizeof(T)) + kAlignment - 1) / kAlignment * kAlignment;
    return at;
  }
  [[nodiscard]] int64_t end() const { return end_; }

 private:
  static constexpr int64_t kAlignment = 256;
  int64_t end_ = 0;
};

// Where the arrays of a HeadsJob lie in the workspace; what the host fills in comes first.
struct JobPlaces {
  Places places;
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

// How many of `blocks` a pass has room for; 0 when there is none for one.
int64_t BlocksAPass(int64_t page_count, int64_t blocks, int32_t head_dim, int64_t room) {
  while (blocks > 0) {
    const int64_t bytes = JobPlaces(page_count, blocks, head_dim).bytes();
    if (bytes <= std::min(room, kPassBytes) || (blocks == 1 && bytes <= room)) return blocks;
    blocks /= 2;
  }
  return 0;
}

template <class T>
T* At(std::byte* memory) {
  return reinterpret_cast<T*>(memory);
}
std::byte* AsBytes(uint32_t* words) { return reinterpret_cast<std::byte*>(words); }

void Put(std::span<std::byte> into, int64_t at, std::span<const std::byte> bytes) {
  std::ranges::copy(bytes, into.begin() + at);
}

}  // namespace

HeadsMirror::HeadsMirror(std::shared_ptr<HeadsDevice> device, int64_t most_bytes)
    : device_(std::move(device)), most_bytes_(most_bytes) {}

HeadsMirror::~HeadsMirror() = default;

void HeadsMirror::Follow(const KeyTiles& keys) {
  const std::scoped_lock lock(mutex_);
  if (given_up_) return;
  if (Status taken = TakeIn(keys); !taken.ok()) {
    failure_ = std::move(taken);
    GiveUp();
  }
}

Status HeadsMirror::TakeIn(const KeyTiles& keys) {
  int64_t coming = 0;
  for (auto page = static_cast<int32_t>(pages_.size()); page < keys.pages(); ++page) {
    coming += static_cast<int64_t>(keys.words(page).size_bytes());
  }
  while (std::ssize(pages_) < keys.pages()) {
    const auto words = std::as_bytes(keys.words(static_cast<int32_t>(pages_.size())));
    const auto bytes = std::ssize(words);
    if (words.empty()) {
      pages_.push_back(nullptr);
      continue;
    }
    if (const auto free = free_.find(bytes); free != free_.end() && !free->second.empty()) {
      EVERLONG_RETURN_IF_ERROR(device_->Upload(AsBytes(free->second.back()), words));
      pages_.push_back(free->second.back());
      free->second.pop_back();
      coming -= bytes;
      continue;
    }
    if (slabs_.empty() || slabs_.back().bytes() - slab_used_ < bytes) {
      // The room for a search may go: it is made anew, in what is left.
      if (most_bytes_ - Held() < coming) workspace_.reset();
      // What only later pages will fill leaves room for searches.
      const int64_t later =
          std::min(std::clamp(Held(), kFirstSlabBytes, kLargestSlabBytes), (most_bytes_ - Held()) / 2);
      EVERLONG_ASSIGN_OR_RETURN(Memory memory, Allocate(std::max(coming, later)));
      slabs_.push_back(std::move(memory));
      slab_used_ = 0;
    }
    std::byte* const at = slabs_.back().at(slab_used_);
    EVERLONG_RETURN_IF_ERROR(device_->Upload(at, words));
    pages_.push_back(At<uint32_t>(at));
    slab_used_ += bytes;
    coming -= bytes;
  }
  return OkStatus();
}

Result<HeadsMirror::Memory> HeadsMirror::Allocate(int64_t bytes) {
  if (bytes > most_bytes_ - Held()) {
    return CapacityError(std::to_string(Held()) + " bytes are taken, and another " + std::to_string(bytes) +
                         " do not fit in the " + std::to_string(most_bytes_) + " that the keys may take");
  }
  EVERLONG_ASSIGN_OR_RETURN(std::byte* const at, device_->Allocate(bytes));
  return Memory(*device_, at, bytes);
}

void HeadsMirror::Forget(const KeyTiles& keys, int32_t page) {
  const std::scoped_lock lock(mutex_);
  if (given_up_ || pages_[static_cast<size_t>(page)] == nullptr) return;
  uint32_t* const words = std::exchange(pages_[static_cast<size_t>(page)], nullptr);
  const std::vector<std::byte> zeros(keys.words(page).size_bytes());
  if (Status zeroed = device_->Upload(AsBytes(words), zeros); !zeroed.ok()) {
    failure_ = std::move(zeroed);
    GiveUp();
    return;
  }
  free_[std::ssize(zeros)].push_back(words);
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
  const int64_t room = most_bytes_ - Held() + (workspace_ ? workspace_->bytes() : 0);
  const int64_t at_once = BlocksAPass(scored.size(), std::ssize(blocks), dim, room);
  if (at_once == 0) {
    return CapacityError("a search of " + std::to_string(scored.size()) + " pages needs " +
                         std::to_string(JobPlaces(scored.size(), 1, dim).bytes()) + " bytes beside the keys, and " +
                         std::to_string(room) + " are left of " + std::to_string(most_bytes_));
  }
  if (const int64_t bytes = JobPlaces(scored.size(), at_once, dim).bytes();
      !workspace_ || workspace_->bytes() < bytes) {
    workspace_.reset();
    EVERLONG_ASSIGN_OR_RETURN(workspace_, Allocate(bytes));
  }
  std::vector<HeadsPage> pages;
  pages.reserve(mass.size());
  scored.ForEach(0, scored.size(), [&](int32_t /*position*/, int32_t page) {
    pages.push_back({pages_[static_cast<size_t>(page)], keys.tokens(page), sinks[page]});
  });
  for (; !blocks.empty(); blocks = blocks.subspan(std::min(blocks.size(), static_cast<size_t>(at_once)))) {
    const auto pass = blocks.first(std::min(blocks.size(), static_cast<size_t>(at_once)));
    EVERLONG_RETURN_IF_ERROR(AddMassOfPass(keys, pass, pages, mass));
  }
  return OkStatus();
}

Status HeadsMirror::AddMassOfPass(const KeyTiles& keys, std::span<const RowBlock> pass,
                                  std::span<const HeadsPage> pages, std::span<float> mass) {
  const JobPlaces places(std::ssize(pages), std::ssize(pass), keys.layout().head_dim);
  std::vector<std::byte> filled_in(static_cast<size_t>(places.filled_in));
  Put(filled_in, places.pages, std::as_bytes(pages));
  const auto numbers = static_cast<size_t>(2 * PairsOf(keys.layout().head_dim) * kBlockRows);  // of a block's queries
  for (size_t block = 0; block < pass.size(); ++block) {
    const auto queries = std::as_bytes(std::span(pass[block].rows.values(), numbers));
    const auto weights = std::as_bytes(std::span(pass[block].weights));
    const auto nth = static_cast<int64_t>(block);
    Put(filled_in, places.queries + nth * std::ssize(queries), queries);
    const auto key_head = std::as_bytes(std::span(&pass[block].key_head, 1));
    Put(filled_in, places.key_heads + nth * std::ssize(key_head), key_head);
    Put(filled_in, places.weights + nth * std::ssize(weights), weights);
  }
  EVERLONG_RETURN_IF_ERROR(device_->Upload(workspace_->at(0), filled_in));

  HeadsJob job;
  job.layout = keys.layout();
  job.page_count = std::ssize(pages);
  job.blocks = std::ssize(pass);
  job.pages = At<HeadsPage>(workspace_->at(places.pages));
  job.queries = At<float>(workspace_->at(places.queries));
  job.key_heads = At<int32_t>(workspace_->at(places.key_heads));
  job.weights = At<float>(workspace_->at(places.weights));
  job.shares = At<PageShare>(workspace_->at(places.shares));
  job.factors = At<RowFactor>(workspace_->at(places.factors));
  job.mass = At<float>(workspace_->at(places.mass));
  std::vector<float> of_pass(pages.size());
  EVERLONG_RETURN_IF_ERROR(device_->Scan(job, of_pass));
  for (size_t at = 0; at < of_pass.size(); ++at) mass[at] += of_pass[at];
  return OkStatus();
}

void HeadsMirror::GiveUp() {
  given_up_ = true;
  workspace_.reset();
  slabs_.clear();
  pages_.clear();
  free_.clear();
}

int64_t HeadsMirror::Held() const {
  int64_t bytes = workspace_ ? workspace_->bytes() : 0;
  for (const Memory& slab : slabs_) bytes += slab.bytes();
  return bytes;
}

int64_t HeadsMirror::bytes() const {
  const std::scoped_lock lock(mutex_);
  return Held();
}

int64_t HeadsMirror::scans() const {
  const std::scoped_lock lock(mutex_);
  return scans_;
}

Status HeadsMirror::TakeFailure() {
  const std::scoped_lock lock(mutex_);
  return std::exchange(failure_, OkStatus());
}

}  // namespace everlong::index
