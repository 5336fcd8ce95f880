#include "graph_growth.h"

#include <algorithm>
#include <cmath>
#include <utility>

#include "at_least.h"
#include "block_reader.h"

namespace everlong::os {
namespace {

// Return the vector at unit length; empty where it has no direction.
std::vector<float> DirectionOf(std::span<const float> vector) {
  double square = 0;
  for (const float value : vector) square += double{value} * double{value};
  if (!(square > 0) || !std::isfinite(square)) return {};
  std::vector<float> direction;
  direction.reserve(vector.size());
  const double length = std::sqrt(square);
  for (const float value : vector) direction.push_back(static_cast<float>(double{value} / length));
  return direction;
}

}  // namespace

Status GraphGrowth::Open() {
  if (graph_ != nullptr) return OkStatus();
  if (options_) {
    EVERLONG_ASSIGN_OR_RETURN(graph_, graph::MemoryGraph::Open(store_, *options_));
  } else {
    EVERLONG_ASSIGN_OR_RETURN(graph_, graph::MemoryGraph::OpenAsItIs(store_));
  }
  tended_to_ = 0;
  return OkStatus();
}

Status GraphGrowth::SetOptions(graph::GraphOptions options) {
  const auto growing = Hold();
  if (options_ == options) return OkStatus();
  graph_.reset();
  options_ = std::move(options);
  const Status opened = Open();
  if (!opened.ok()) options_.reset();
  return opened;
}

Status GraphGrowth::Forget(std::span<const int64_t> blocks) {
  // A damaged or missing graph must not keep anybody from forgetting. It is grown anew when it is next opened.
  if (Open().ok()) {
    const Status forgotten = graph_->Forget(blocks);
    if (forgotten.ok()) return forgotten;
    graph_.reset();
    const auto is_there = [this](int64_t id) { return store_.Block(id).ok(); };
    if (forgotten.code() != StatusCode::kCorrupt || !std::ranges::all_of(blocks, is_there)) return forgotten;
  }
  return store_.Forget(blocks);
}

GraphGrowth::Coming GraphGrowth::Next(int32_t most_blocks) const {
  const bool by_encoder = !by_keys() && !graph_->options().space.empty();
  Coming coming{{}, {}, tended_to_};
  const auto reading = index_.Read();
  const index::BlockTable& table = index_.table();
  const index::Part* const encoded = index_.part(index::IndexPart::kEmbedding);
  for (int32_t number = table.NumberBehind(tended_to_);
       number < table.blocks() && std::ssize(coming.blocks) < most_blocks; ++number) {
    const index::BlockEntry& block = table.block(number);
    if (!block.forgotten && !graph_->Has(block.id)) {
      graph::NewBlock next{block.id, 0, block.created_at, {}};
      if (by_encoder) {
        if (encoded == nullptr || !encoded->Has(block)) break;  // the encoder goes in the same order
        next.vector = DirectionOf(encoded->BlockVector(block));
      }
      const auto before = table.RecentBlocks(block.stream, block.span.begin, 1, {});
      if (!before.empty()) next.previous = before[0]->id;
      coming.entries.push_back(block);
      coming.blocks.push_back(std::move(next));
    }
    coming.tended_to = block.id;
  }
  return coming;
}

Status GraphGrowth::KeepStored(Coming& coming) const {
  Coming stored;
  for (size_t i = 0; i < coming.blocks.size(); ++i) {
    const Status there = store_.Block(coming.blocks[i].id).status();
    if (there.code() == StatusCode::kNotFound) continue;
    EVERLONG_RETURN_IF_ERROR(there);
    stored.blocks.push_back(std::move(coming.blocks[i]));
    stored.entries.push_back(coming.entries[i]);
  }
  coming.blocks = std::move(stored.blocks);
  coming.entries = std::move(stored.entries);
  return OkStatus();
}

Status GraphGrowth::ReadKeyDirections(Coming& coming) const {
  index::PartNeeds needs;
  needs.key_sum = true;
  std::vector<const index::BlockEntry*> read;
  for (const index::BlockEntry& entry : coming.entries) read.push_back(&entry);
  size_t next = 0;
  const auto take = [&](const index::BlockEntry& /*block*/, const DecodedBlock& decoded) {
    coming.blocks[next++].vector = DirectionOf(decoded.key_sum);
    return OkStatus();
  };
  std::vector<Status> damaged;
  return BlockReader(store_, layout_, payloads_).Visit(read, needs, take, damaged);
}

Result<int64_t> GraphGrowth::Tend(int32_t most_blocks) {
  EVERLONG_RETURN_IF_ERROR(AtLeast("most_blocks", most_blocks, 1));
  const auto growing = Hold();
  if (!options_) return 0;
  EVERLONG_RETURN_IF_ERROR(Open());
  Coming coming = Next(most_blocks);
  const int64_t tended = std::ssize(coming.blocks);
  EVERLONG_RETURN_IF_ERROR(KeepStored(coming));
  if (by_keys() && !coming.blocks.empty()) EVERLONG_RETURN_IF_ERROR(ReadKeyDirections(coming));
  if (const Status added = graph_->Add(coming.blocks); !added.ok()) {
    graph_.reset();
    return added;
  }
  tended_to_ = coming.tended_to;
  index_.SetBytesBeside(graph_->bytes());
  return tended;
}

}  // namespace everlong::os
