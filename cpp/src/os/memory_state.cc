#include "memory_state.h"

#include <algorithm>
#include <cmath>
#include <exception>
#include <set>
#include <string>
#include <utility>

#include "everlong/base/parallel_for.h"
#include "everlong/kv/archive.h"

namespace everlong::os {
namespace {

using index::HeadsIndex;

// Payload that one read of many blocks takes at a time, about.
constexpr size_t kReadBytes = size_t{16} << 20;

// Adds the keys of all heads of one part to sum [Hkv * D].
void AddKeys(std::span<const std::byte> part, int32_t tokens, const kv::PayloadLayout& layout, std::span<float> sum) {
  const auto dim = static_cast<size_t>(layout.head_dim);
  std::vector<float> keys(static_cast<size_t>(tokens) * dim);
  for (int32_t head = 0; head < layout.kv_heads; ++head) {
    kv::DecodeKeys(part, tokens, head, layout, keys);
    float* out = sum.data() + static_cast<size_t>(head) * dim;
    for (size_t i = 0; i < keys.size(); ++i) out[i % dim] += keys[i];
  }
}

// The keys of every key head of one page: [key_heads, tokens, D]. part(layer) gives the bytes of that layer.
template <class Part>
std::vector<float> DecodeHeadKeys(const HeadsIndex& heads, int32_t tokens, const kv::PayloadLayout& layout,
                                  const Part& part) {
  const size_t size = static_cast<size_t>(tokens) * static_cast<size_t>(layout.head_dim);
  std::vector<float> keys(heads.key_heads().size() * size);
  for (size_t i = 0; i < heads.key_heads().size(); ++i) {
    const HeadsIndex::KeyHead& key_head = heads.key_heads()[i];
    kv::DecodeKeys(part(key_head.layer), tokens, key_head.kv_head, layout, std::span(keys).subspan(i * size, size));
  }
  return keys;
}

// The mean and the sum of a block's keys have the same direction, and only the direction counts.
Status AddDirection(index::VectorIndex& index, int64_t block, std::span<const float> sum) {
  float largest = 0;
  for (const float value : sum) largest = std::max(largest, std::abs(value));
  std::vector<float> direction(sum.begin(), sum.end());
  if (largest > 0) {
    for (float& value : direction) value /= largest;
  }
  return index.Add({&block, 1}, direction);
}

}  // namespace

bool Memory::State::BlockPages::Passes(const SearchFilter& filter) const {
  const auto has_tag = [this](const std::string& tag) { return std::ranges::find(tags, tag) != tags.end(); };
  return (filter.sources.empty() || std::ranges::find(filter.sources, source) != filter.sources.end()) &&
         std::ranges::all_of(filter.tags, has_tag) && (!filter.since || created_at >= *filter.since) &&
         (!filter.before || created_at < *filter.before);
}

Status Memory::State::AddToIndexes(const store::BlockInfo& info, std::span<const int32_t> token_ids,
                                   const PayloadKeys& keys) {
  const auto pages = static_cast<int32_t>(layout.PageCount(info.span.size()));
  const BlockPages block{directory.size(), pages, info.span, info.stream, info.source, info.created_at, info.tags};
  for (int32_t page = 0; page < pages; ++page) {
    const int64_t first = int64_t{page} * layout.page_tokens;
    const int32_t tokens = layout.PageTokens(info.span.size(), page);
    const auto sinks = static_cast<int32_t>(std::clamp<int64_t>(info.sink_tokens - first, 0, tokens));
    const auto ids = token_ids.subspan(static_cast<size_t>(first), static_cast<size_t>(tokens));
    EVERLONG_RETURN_IF_ERROR(lexical->Add(ids));
    if (heads.has_value()) {
      EVERLONG_RETURN_IF_ERROR(heads->Add(keys.head_keys[static_cast<size_t>(page)], tokens, sinks));
    }
    statistics.AddPage(ids);
    const int64_t begin = info.span.begin + first;
    directory.Add({info.id, page, info.stream, {begin, begin + tokens}, sinks, info.source});
  }
  for (const auto& block_index : {&mean_pool, &hnsw}) {
    if (*block_index != nullptr) EVERLONG_RETURN_IF_ERROR(AddDirection(**block_index, info.id, keys.mean_pool_sum));
  }
  MarkUnsaved();
  blocks.emplace(info.id, block);
  streams[info.stream].emplace(info.span.begin, info.id);
  return OkStatus();
}

Status Memory::State::IndexSubmitted(int64_t id, const store::BlockDraft& draft, const PayloadKeys& keys) {
  submitted[id].assign(draft.token_ids.begin(), draft.token_ids.end());
  store::BlockInfo info;
  info.id = id;
  info.stream = draft.stream;
  info.span = draft.span;
  info.sink_tokens = draft.sink_tokens;
  info.source = draft.source;
  info.created_at = draft.created_at;
  info.tags = draft.tags;
  const std::unique_lock changing(guard);
  EVERLONG_RETURN_IF_ERROR(AddToIndexes(info, draft.token_ids, keys));
  TellIndexBytes();
  return OkStatus();
}

void Memory::State::TellIndexBytes(int64_t more) const {
  int64_t bytes = more + directory.bytes() + statistics.bytes() + lexical->bytes();
  if (heads) bytes += heads->bytes();
  for (const auto& block_index : {&mean_pool, &hnsw}) {
    if (*block_index != nullptr) bytes += (*block_index)->bytes();
  }
  if (page_vectors) bytes += page_vectors->bytes();
  store->SetIndexBytes(bytes);
}

std::string NameOf(const store::MemoryStore& store) {
  const std::optional<std::filesystem::path> folder = store.folder();
  return folder ? folder->string() : "the memory in RAM";
}

Status StoredBlocks::CheckNext(const store::BlockInfo& info, std::span<const int32_t> token_ids) {
  const std::string name = memory_ + ": block " + std::to_string(info.id);
  const TokenSpan span = info.span;
  int64_t& end = ends_[info.stream];
  if (info.id < 1 || info.id > store::kLargestBlockId || info.stream < 0 || span.begin < end || span.empty()) {
    return CorruptError(name + " cannot hold tokens " + NameOf(span) + " of stream " + std::to_string(info.stream) +
                        " behind token " + std::to_string(end));
  }
  end = span.end;
  const int64_t tokens = span.size();
  const int64_t pages = layout_.layers > 0 ? layout_.PageCount(tokens) : 0;  // with a payload
  if (info.pages != pages || info.payload_bytes != layout_.BlockBytes(tokens) || std::ssize(token_ids) != tokens) {
    return CorruptError(name + " of " + std::to_string(tokens) + " tokens has " + std::to_string(info.pages) +
                        " pages, " + std::to_string(info.payload_bytes) + " bytes and " +
                        std::to_string(token_ids.size()) + " token ids");
  }
  const auto negative = std::ranges::find_if(token_ids, [](int32_t id) { return id < 0; });
  if (negative == token_ids.end()) return OkStatus();
  return CorruptError(name + " has a token id " + std::to_string(*negative));
}

Status Memory::State::LoadIndexes() {
  directory = {};
  statistics = {};
  mean_pool.reset();
  hnsw.reset();
  blocks.clear();
  streams.clear();
  EVERLONG_ASSIGN_OR_RETURN(lexical, index::LexicalIndex::Create());
  // Their keys go before they come anew: there may be no room for both, here or on their device.
  std::vector<index::RetrievalHead> heads_to_build;
  index::HeadsOptions heads_options;
  if (heads) {
    heads_to_build = heads->heads();
    heads_options = heads->options();
    heads.reset();
  }
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<store::BlockInfo> infos, store->Blocks());
  StoredBlocks stored(layout, Name());
  for (const store::BlockInfo& info : infos) {
    const auto token_ids = store->TokenIds(info.id);
    if (ForgottenByWriter(token_ids.status())) continue;
    EVERLONG_RETURN_IF_ERROR(token_ids.status());
    EVERLONG_RETURN_IF_ERROR(stored.CheckNext(info, *token_ids));
    EVERLONG_RETURN_IF_ERROR(AddToIndexes(info, *token_ids, {}));
  }
  if (page_vectors) {
    // They came from the caller, and those of whole blocks may be nowhere else.
    for (const int64_t block : page_vectors->Blocks()) {
      if (blocks.contains(block)) continue;
      page_vectors->Remove(block);
      unsaved.insert(kPageVectorsFile);
    }
  }
  EVERLONG_ASSIGN_OR_RETURN(heads, BuildHeads(std::move(heads_to_build), heads_options));
  return OkStatus();
}

Result<std::optional<HeadsIndex>> Memory::State::BuildHeads(std::vector<index::RetrievalHead> of,
                                                            index::HeadsOptions options) {
  std::optional<HeadsIndex> built;
  if (of.empty()) return built;
  const std::vector<ListedBlock> listed = ListBlocks();
  std::span<const ListedBlock> missing(listed);
  if (std::optional<SavedHeads> saved = LoadHeads(of, options)) {
    built.emplace(std::move(saved->heads));
    missing = missing.subspan(saved->blocks);
  } else {
    built.emplace(std::move(of), layout.head_dim, options);
  }
  if (!missing.empty()) unsaved.insert(kHeadsFile);
  // The payload makes room before the keys come.
  TellIndexBytes(directory.size() * built->PageBytes(layout.page_tokens));
  // The keys of a forgotten page are gone; one token that is never scored keeps the numbering.
  const std::vector<float> no_keys(built->key_heads().size() * static_cast<size_t>(layout.head_dim));
  const auto add = [&](const ListedBlock& block, const PayloadKeys* keys) {
    for (int32_t page = 0; page < block.count; ++page) {
      const index::PageEntry& entry = directory.at(block.first + page);
      EVERLONG_RETURN_IF_ERROR(keys == nullptr
                                   ? built->Add(no_keys, 1, 1)
                                   : built->Add(keys->head_keys[static_cast<size_t>(page)],
                                                static_cast<int32_t>(entry.span.size()), entry.sink_tokens));
    }
    return OkStatus();
  };
  if (const Status visited = VisitKeys(missing, &*built, false, add); !visited.ok()) {
    TellIndexBytes();  // there is no such index: the payload has its room again
    return visited;
  }
  return built;
}

Status Memory::State::RemoveFromIndexes(int64_t id, std::span<const int32_t> token_ids) {
  const auto found = blocks.find(id);
  if (found == blocks.end()) return OkStatus();
  const BlockPages block = found->second;
  MarkUnsaved();
  directory.ForgetBlock(id);
  for (const auto& block_index : {&mean_pool, &hnsw}) {
    if (*block_index != nullptr) (*block_index)->Remove({&id, 1});
  }
  if (page_vectors) page_vectors->Remove(id);
  const auto stream = streams.find(block.stream);
  const auto at = stream->second.find(block.span.begin);
  if (at != stream->second.end() && at->second == id) stream->second.erase(at);
  if (stream->second.empty()) streams.erase(stream);
  blocks.erase(found);
  for (int32_t page = 0; page < block.count; ++page) {
    const auto first = static_cast<size_t>(page) * static_cast<size_t>(layout.page_tokens);
    const auto tokens = static_cast<size_t>(layout.PageTokens(block.span.size(), page));
    const std::span<const int32_t> ids = token_ids.subspan(first, tokens);
    statistics.RemovePage(ids);
    EVERLONG_RETURN_IF_ERROR(lexical->Remove(block.first + page, ids));
  }
  return OkStatus();
}

Status Memory::State::GiveBackForgotten() {
  int32_t kept = 0;
  for (const auto& [id, block] : blocks) kept += block.count;
  const int32_t forgotten = directory.size() - kept;
  if (forgotten <= kept || (store->folder() && kept > 0)) return OkStatus();
  return ReloadIndexes();
}

Status Memory::State::ReloadIndexes() {
  try {
    broken = LoadIndexes();
  } catch (const std::exception& error) {  // out of memory, with some of the blocks
    broken =
        CapacityError(std::string("the indexes could not be made anew (") + error.what() + "): open the memory anew");
  }
  EVERLONG_RETURN_IF_ERROR(broken);
  TellIndexBytes();
  return OkStatus();
}

bool Memory::State::IndexesBlocksThatAreGone() const {
  return std::ranges::any_of(
      blocks, [this](const auto& block) { return store->Block(block.first).status().code() == StatusCode::kNotFound; });
}

Status Memory::State::Flush() {
  std::vector<int64_t> lost;
  const Status flushed = store->Flush(&lost);
  {
    const std::unique_lock changing(guard);
    for (const int64_t id : lost) {
      if (const Status removed = RemoveFromIndexes(id, submitted[id]); !removed.ok()) broken = removed;
    }
  }
  submitted.clear();
  return flushed;
}

std::vector<Memory::State::ListedBlock> Memory::State::ListBlocks() const {
  std::vector<ListedBlock> listed;
  for (int32_t ordinal = 0; ordinal < directory.size(); ++ordinal) {
    const index::PageEntry& entry = directory.at(ordinal);
    if (entry.page == 0) listed.push_back({entry.block, ordinal, 0, entry.span, entry.forgotten});
    ++listed.back().count;
    listed.back().span.end = entry.span.end;
  }
  return listed;
}

Status Memory::State::VisitKeys(std::span<const ListedBlock> listed, const HeadsIndex* heads_index, bool with_sum,
                                const KeysVisitor& visit) const {
  const size_t layers = heads_index == nullptr ? 1 : heads_index->key_heads().size();  // at most
  for (size_t i = 0; i < listed.size();) {
    if (listed[i].forgotten) {
      EVERLONG_RETURN_IF_ERROR(visit(listed[i++], nullptr));
      continue;
    }
    size_t end = i;
    for (size_t bytes = 0; end < listed.size() && !listed[end].forgotten && bytes < kReadBytes; ++end) {
      bytes += layers * static_cast<size_t>(listed[end].count * layout.PartBytes(layout.page_tokens));
    }
    Result<std::vector<PayloadKeys>> keys = ReadKeys(listed.subspan(i, end - i), heads_index, with_sum);
    if (ForgottenByWriter(keys.status())) {  // some block of these; which one shows when they are read one by one
      keys = ReadKeys(listed.subspan(i, 1), heads_index, with_sum);
      if (ForgottenByWriter(keys.status())) {
        EVERLONG_RETURN_IF_ERROR(visit(listed[i++], nullptr));
        continue;
      }
    }
    EVERLONG_RETURN_IF_ERROR(keys.status());
    for (const PayloadKeys& of_block : *keys) EVERLONG_RETURN_IF_ERROR(visit(listed[i++], &of_block));
  }
  return OkStatus();
}

Result<std::vector<Memory::State::PayloadKeys>> Memory::State::ReadKeys(std::span<const ListedBlock> listed,
                                                                        const HeadsIndex* heads_index,
                                                                        bool with_sum) const {
  const int32_t last_layer = layout.layers - 1;
  std::set<int32_t> layers;
  if (with_sum) layers.insert(last_layer);
  if (heads_index != nullptr) {
    for (const HeadsIndex::KeyHead& key_head : heads_index->key_heads()) layers.insert(key_head.layer);
  }
  struct Page {
    int32_t tokens = 0;
    std::map<int32_t, std::vector<std::byte>> parts;  // by layer
  };
  std::vector<std::vector<Page>> pages(listed.size());
  std::vector<store::PageRead> reads;
  for (size_t i = 0; i < listed.size(); ++i) {
    for (int32_t page = 0; page < listed[i].count; ++page) {
      Page& read = pages[i].emplace_back();
      read.tokens = layout.PageTokens(listed[i].span.size(), page);
      for (const int32_t layer : layers) {
        std::vector<std::byte>& part = read.parts[layer];
        part.resize(static_cast<size_t>(layout.PartBytes(read.tokens)));
        reads.push_back({listed[i].id, page, layer, 1, part});
      }
    }
  }
  EVERLONG_RETURN_IF_ERROR(store->ReadPages(reads));

  std::vector<PayloadKeys> keys(listed.size());
  ParallelFor(0, std::ssize(listed), 1, [&](int64_t first, int64_t last) {
    for (auto i = static_cast<size_t>(first); i < static_cast<size_t>(last); ++i) {
      if (with_sum) keys[i].mean_pool_sum.assign(static_cast<size_t>(layout.kv_heads * layout.head_dim), 0.0F);
      for (const Page& page : pages[i]) {
        const auto part = [&page](int32_t layer) { return std::span<const std::byte>(page.parts.at(layer)); };
        if (heads_index != nullptr) {
          keys[i].head_keys.push_back(DecodeHeadKeys(*heads_index, page.tokens, layout, part));
        }
        if (with_sum) AddKeys(part(last_layer), page.tokens, layout, keys[i].mean_pool_sum);
      }
    }
  });
  return keys;
}

Memory::State::PayloadKeys Memory::State::DecodePayloadKeys(std::span<const std::byte> payload, int64_t tokens,
                                                            const HeadsIndex* heads_index, bool with_sum) const {
  PayloadKeys keys;
  if (with_sum) keys.mean_pool_sum.assign(static_cast<size_t>(layout.kv_heads * layout.head_dim), 0.0F);
  for (int64_t page = 0; page < layout.PageCount(tokens); ++page) {
    const int32_t page_tokens = layout.PageTokens(tokens, page);
    const auto part_bytes = static_cast<size_t>(layout.PartBytes(page_tokens));
    const auto page_bytes = payload.subspan(static_cast<size_t>(page * layout.PageBytes(layout.page_tokens)));
    const auto part = [page_bytes, part_bytes](int32_t layer) {
      return page_bytes.subspan(static_cast<size_t>(layer) * part_bytes, part_bytes);
    };
    if (heads_index != nullptr) keys.head_keys.push_back(DecodeHeadKeys(*heads_index, page_tokens, layout, part));
    if (with_sum) AddKeys(part(layout.layers - 1), page_tokens, layout, keys.mean_pool_sum);
  }
  return keys;
}

Status Memory::State::BuildBlockIndex(index::IndexPart kind) {
  std::unique_ptr<index::VectorIndex>& wanted = kind == index::IndexPart::kHnsw ? hnsw : mean_pool;
  {
    const std::shared_lock reading(guard);
    if (wanted != nullptr) return OkStatus();
  }
  const std::scoped_lock writing(writer);
  if (wanted != nullptr) return OkStatus();
  const int32_t dimension = layout.kv_heads * layout.head_dim;
  std::unique_ptr<index::VectorIndex> built = LoadBlockIndex(kind);
  if (built == nullptr) {
    built = kind == index::IndexPart::kHnsw ? index::MakeHnswIndex({.dimension = dimension})
                                            : index::MakeFlatIndex({.dimension = dimension});
  }
  const std::vector<int64_t> ids = built->ids();
  const std::set<int64_t> known(ids.begin(), ids.end());
  std::vector<ListedBlock> missing = ListBlocks();
  std::erase_if(missing, [&known](const ListedBlock& block) { return block.forgotten || known.contains(block.id); });
  EVERLONG_RETURN_IF_ERROR(
      VisitKeys(missing, nullptr, true, [&built](const ListedBlock& block, const PayloadKeys* keys) {
        return keys == nullptr ? OkStatus() : AddDirection(*built, block.id, keys->mean_pool_sum);
      }));
  const std::unique_lock changing(guard);
  if (!missing.empty()) unsaved.insert(kind == index::IndexPart::kHnsw ? kHnswFile : kMeanPoolFile);
  wanted = std::move(built);
  TellIndexBytes();
  return OkStatus();
}

Result<std::shared_lock<FairSharedMutex>> Memory::State::LockWithBlockIndexes(bool with_mean_pool, bool with_hnsw) {
  while (true) {
    if (with_mean_pool) EVERLONG_RETURN_IF_ERROR(BuildBlockIndex(index::IndexPart::kMeanPool));
    if (with_hnsw) EVERLONG_RETURN_IF_ERROR(BuildBlockIndex(index::IndexPart::kHnsw));
    std::shared_lock reading(guard);
    // A repair may have dropped them before the lock was had.
    if ((!with_mean_pool || mean_pool != nullptr) && (!with_hnsw || hnsw != nullptr)) return reading;
  }
}

bool Memory::State::ForgottenByWriter(const Status& status) const {
  return store->read_only() && status.code() == StatusCode::kNotFound;
}

PageRef Memory::State::RefOf(int32_t ordinal) const {
  const index::PageEntry& entry = directory.at(ordinal);
  return {entry.block, entry.page, entry.stream, entry.span, entry.sink_tokens};
}

Result<int32_t> Memory::State::OrdinalOf(const PageRef& page) const {
  const auto name = [&page] { return "block " + std::to_string(page.block) + " page " + std::to_string(page.page); };
  const auto block = blocks.find(page.block);
  if (block == blocks.end() || page.page < 0 || page.page >= block->second.count) {
    return NotFoundError("there is no " + name());
  }
  const int32_t ordinal = block->second.first + page.page;
  const index::PageEntry& entry = directory.at(ordinal);
  if (page != RefOf(ordinal)) {
    return InvalidArgumentError(name() + " is given as tokens " + NameOf(page.span) + " of stream " +
                                std::to_string(page.stream) + " with " + std::to_string(page.sink_tokens) +
                                " sinks, expected " + NameOf(entry.span) + " of stream " +
                                std::to_string(entry.stream) + " with " + std::to_string(entry.sink_tokens));
  }
  return ordinal;
}

index::PageFilter Memory::State::Recallable(int64_t stream, int64_t resident_from, const SearchFilter& filter) const {
  index::PageFilter recallable(directory.size(), false);
  for (const auto& [id, block] : blocks) {
    if (!block.Passes(filter)) continue;
    for (int32_t ordinal = block.first; ordinal < block.first + block.count; ++ordinal) {
      const index::PageEntry& entry = directory.at(ordinal);
      // A page of which a part has left the frame can come back: MemoryOs::Recall places that part. Sinks never leave.
      const bool resident = entry.stream == stream && entry.span.begin + entry.sink_tokens >= resident_from;
      const bool only_sinks = entry.sink_tokens >= entry.span.size();
      recallable.Set(ordinal, !resident && !only_sinks);
    }
  }
  return recallable;
}

}  // namespace everlong::os
