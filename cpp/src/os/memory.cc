#include "everlong/os/memory.h"

#include <algorithm>
#include <cmath>
#include <string>
#include <utility>

#include "everlong/base/heap.h"
#include "everlong/kv/archive.h"
#include "memory_state.h"

namespace everlong::os {
namespace {

Result<kv::PayloadLayout> LayoutOf(const store::Manifest& manifest) {
  const store::Geometry& geometry = manifest.geometry;
  kv::PayloadLayout layout;
  EVERLONG_ASSIGN_OR_RETURN(layout.codec, kv::ParseCodec(geometry.codec));
  layout.layers = geometry.layers;
  layout.kv_heads = geometry.kv_heads;
  layout.head_dim = geometry.head_dim;
  layout.page_tokens = geometry.page_tokens;
  // There is nothing to lay out in a memory of text alone; its manifest is checked by the store.
  if (!TextAlone(geometry)) EVERLONG_RETURN_IF_ERROR(Validate(layout));
  return layout;
}

Result<kv::PayloadLayout> LayoutOfStore(const store::MemoryStore& store) {
  auto layout = LayoutOf(store.manifest());
  if (!layout.ok()) return CorruptError(NameOf(store) + ": manifest: " + layout.status().message());
  return layout;
}

// Of a store that another program may have written: whether it is a memory that this one could open.
Status RequireIndexable(const store::MemoryStore& store) {
  EVERLONG_ASSIGN_OR_RETURN(const kv::PayloadLayout layout, LayoutOfStore(store));
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<store::BlockInfo> infos, store.Blocks());
  StoredBlocks stored(layout, NameOf(store));
  for (const store::BlockInfo& info : infos) {
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<int32_t> token_ids, store.TokenIds(info.id));
    EVERLONG_RETURN_IF_ERROR(stored.CheckNext(info, token_ids));
  }
  return OkStatus();
}

Status CheckWritable(const store::MemoryStore& store) {
  return store.read_only() ? ReadOnlyError("the memory was opened for reading") : OkStatus();
}

Status CheckDraft(const store::BlockDraft& draft, const kv::PayloadLayout& layout) {
  EVERLONG_RETURN_IF_ERROR(store::ValidateBlock(draft));
  if (draft.stream < 0) {
    return InvalidArgumentError("stream is " + std::to_string(draft.stream) + ", expected at least 0");
  }
  const auto negative = std::ranges::find_if(draft.token_ids, [](int32_t id) { return id < 0; });
  if (negative != draft.token_ids.end()) {
    return InvalidArgumentError("token_ids holds " + std::to_string(*negative) + ", expected 0 or more");
  }
  const int64_t tokens = draft.span.size();
  const int64_t bytes = layout.BlockBytes(tokens);
  if (static_cast<int64_t>(draft.payload.size()) != bytes) {
    return InvalidArgumentError("payload has " + std::to_string(draft.payload.size()) + " bytes, expected " +
                                std::to_string(bytes) + " for " + std::to_string(tokens) + " tokens");
  }
  return OkStatus();
}

bool AllFinite(const std::vector<float>& values) {
  return std::ranges::all_of(values, [](float value) { return std::isfinite(value); });
}

Status CheckHeads(std::span<const index::RetrievalHead> heads, const kv::PayloadLayout& layout) {
  for (const index::RetrievalHead& head : heads) {
    if (head.layer < 0 || head.layer >= layout.layers || head.kv_head < 0 || head.kv_head >= layout.kv_heads ||
        head.query_head < 0) {
      return InvalidArgumentError("retrieval head is (layer " + std::to_string(head.layer) + ", query_head " +
                                  std::to_string(head.query_head) + ", kv_head " + std::to_string(head.kv_head) +
                                  "), expected a layer below " + std::to_string(layout.layers) +
                                  " and a kv_head below " + std::to_string(layout.kv_heads));
    }
  }
  return OkStatus();
}

}  // namespace

Memory::Memory(std::unique_ptr<State> state) : state_(std::move(state)) {}
Memory::~Memory() = default;

Result<std::unique_ptr<Memory>> Memory::Create(const std::optional<std::filesystem::path>& folder,
                                               const store::Manifest& manifest, const store::StoreOptions& options) {
  EVERLONG_RETURN_IF_ERROR(LayoutOf(manifest).status());
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<store::MemoryStore> store,
                            store::MemoryStore::Create(folder, manifest, options));
  return Over(std::move(store));
}

Result<std::unique_ptr<Memory>> Memory::Open(const std::filesystem::path& folder, bool read_only,
                                             const store::StoreOptions& options) {
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<store::MemoryStore> store,
                            store::MemoryStore::Open(folder, read_only, options));
  return Over(std::move(store));
}

Result<std::unique_ptr<Memory>> Memory::Import(const std::filesystem::path& file,
                                               const std::optional<std::filesystem::path>& folder,
                                               const store::StoreOptions& options) {
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<store::MemoryStore> store,
                            store::MemoryStore::Import(file, folder, options, RequireIndexable));
  return Over(std::move(store));
}

Result<std::unique_ptr<Memory>> Memory::Over(std::unique_ptr<store::MemoryStore> store) {
  auto state = std::make_unique<State>();
  state->store = std::move(store);
  EVERLONG_ASSIGN_OR_RETURN(state->layout, LayoutOfStore(*state->store));
  EVERLONG_RETURN_IF_ERROR(state->LoadIndexes());
  state->TellIndexBytes();
  return std::unique_ptr<Memory>(new Memory(std::move(state)));
}

Result<int64_t> Memory::Append(const store::BlockDraft& draft) {
  State& s = *state_;
  const std::scoped_lock writing(s.writer);
  EVERLONG_RETURN_IF_ERROR(CheckWritable(*s.store));
  EVERLONG_RETURN_IF_ERROR(s.broken);
  EVERLONG_RETURN_IF_ERROR(CheckDraft(draft, s.layout));
  if (const int64_t end = StreamEnd(draft.stream); draft.span.begin < end) {
    return InvalidArgumentError("span is " + NameOf(draft.span) + ", expected to begin at " + std::to_string(end) +
                                " or later, where the archived part of stream " + std::to_string(draft.stream) +
                                " ends");
  }
  // All that can be refused is refused before the block is stored.
  const int64_t tokens = draft.span.size();
  const State::PayloadKeys keys =
      s.DecodePayloadKeys(draft.payload, tokens, s.heads.has_value() ? &*s.heads : nullptr, s.NeedsSums());
  if (!AllFinite(keys.mean_pool_sum) || !std::ranges::all_of(keys.head_keys, index::HeadsIndex::Takes)) {
    return InvalidArgumentError("payload holds keys that are NaN or infinite in bf16");
  }

  std::vector<int64_t> page_bytes;
  for (int64_t page = 0; !draft.payload.empty() && page < s.layout.PageCount(tokens); ++page) {
    page_bytes.push_back(s.layout.PageBytes(s.layout.PageTokens(tokens, page)));
  }
  store::BlockDraft sized = draft;
  sized.page_bytes = page_bytes;
  const Result<int64_t> submitted = s.store->Submit(sized);
  if (!submitted.ok()) {
    const Status earlier = s.Flush();  // what may have gone wrong with blocks before this one
    return earlier.ok() ? submitted.status() : earlier;
  }
  const int64_t id = *submitted;
  Status indexed;
  try {
    indexed = s.IndexSubmitted(id, draft, keys);
  } catch (const std::exception& error) {  // out of memory
    indexed = CapacityError(error.what());
  }
  if (!indexed.ok()) {
    const std::unique_lock changing(s.guard);
    s.broken = {indexed.code(), "block " + std::to_string(id) + " is stored but could not be indexed (" +
                                    indexed.message() + "): open the memory anew"};
    return s.broken;
  }
  s.appended_tokens += tokens;
  if (s.appended_tokens >= State::kTrimTokens) {
    s.appended_tokens = 0;
    ReturnFreedHeap();
  }
  return id;
}

Status Memory::SetRetrievalHeads(std::vector<index::RetrievalHead> heads, index::HeadsOptions options) {
  State& s = *state_;
  const std::scoped_lock writing(s.writer);
  EVERLONG_RETURN_IF_ERROR(s.broken);
  EVERLONG_RETURN_IF_ERROR(CheckHeads(heads, s.layout));
  EVERLONG_ASSIGN_OR_RETURN(std::optional<index::HeadsIndex> built, s.BuildHeads(std::move(heads), std::move(options)));
  const std::unique_lock changing(s.guard);
  s.heads = std::move(built);
  s.TellIndexBytes();
  return OkStatus();
}

std::vector<index::RetrievalHead> Memory::retrieval_heads() const {
  const std::shared_lock reading(state_->guard);
  return state_->heads.has_value() ? state_->heads->heads() : std::vector<index::RetrievalHead>{};
}

index::DeviceUse Memory::device_use() const {
  const std::shared_lock reading(state_->guard);
  return state_->heads.has_value() ? state_->heads->device_use() : index::DeviceUse{};
}

Status Memory::SetPageVectors(const PageVectorOptions& options) {
  State& s = *state_;
  if (options.dimension < 1) {
    return InvalidArgumentError("dimension is " + std::to_string(options.dimension) + ", expected at least 1");
  }
  const std::scoped_lock writing(s.writer);
  EVERLONG_RETURN_IF_ERROR(s.broken);
  const std::unique_lock changing(s.guard);
  if (!s.page_vectors || s.page_vectors->options() != options) s.page_vectors.emplace(s.LoadPageVectors(options));
  s.TellIndexBytes();
  return OkStatus();
}

Status Memory::AddPageVectors(int64_t block, std::span<const int32_t> pages, std::span<const float> vectors) {
  State& s = *state_;
  const std::scoped_lock writing(s.writer);
  EVERLONG_RETURN_IF_ERROR(s.broken);
  const std::unique_lock changing(s.guard);
  if (!s.page_vectors) return InvalidArgumentError("vectors are given, expected none: this memory has no encoder");
  const auto found = s.blocks.find(block);
  if (found == s.blocks.end()) return NotFoundError("there is no block " + std::to_string(block));
  s.unsaved.insert(kPageVectorsFile);
  EVERLONG_RETURN_IF_ERROR(s.page_vectors->Add(block, found->second.count, pages, vectors));
  s.TellIndexBytes();
  return OkStatus();
}

std::vector<PageRef> Memory::PagesWithoutVectors() const {
  const State& s = *state_;
  const std::shared_lock reading(state_->guard);
  std::vector<PageRef> pages;
  if (!s.page_vectors) return pages;
  std::vector<int32_t> firsts;
  for (const auto& [id, block] : s.blocks) {
    if (!s.page_vectors->Has(id)) firsts.push_back(block.first);
  }
  std::ranges::sort(firsts);
  for (const int32_t first : firsts) {
    const State::BlockPages& block = s.blocks.at(s.directory.at(first).block);
    for (int32_t page = 0; page < block.count; ++page) pages.push_back(s.RefOf(first + page));
  }
  return pages;
}

Result<std::vector<PageRef>> Memory::PagesOf(int64_t stream, TokenSpan span) const {
  if (span.begin < 0 || span.end < span.begin) {
    return InvalidArgumentError("span is " + NameOf(span) + ", expected 0 <= begin <= end");
  }
  std::vector<PageRef> pages;
  if (span.empty()) return pages;
  const State& s = *state_;
  const std::shared_lock reading(state_->guard);
  int64_t next = span.begin;  // the first token that no page holds yet
  if (const auto found = s.streams.find(stream); found != s.streams.end()) {
    auto block = found->second.upper_bound(span.begin);
    if (block != found->second.begin()) --block;
    for (; block != found->second.end() && block->first <= next && next < span.end; ++block) {
      const State::BlockPages& at = s.blocks.at(block->second);
      for (int32_t ordinal = at.first; ordinal < at.first + at.count; ++ordinal) {
        if (!s.directory.at(ordinal).span.Overlaps(span)) continue;
        pages.push_back(s.RefOf(ordinal));
        next = pages.back().span.end;
      }
    }
  }
  if (next < span.end) {
    return NotFoundError("token " + std::to_string(next) + " of stream " + std::to_string(stream) +
                         " is not in the memory");
  }
  return pages;
}

Status Memory::ReadPages(std::span<const PageRef> pages, std::span<std::byte> out) const {
  EVERLONG_ASSIGN_OR_RETURN(const std::unique_ptr<store::PendingReads> reads,
                            StartReadPages(pages, 0, state_->layout.layers, out));
  return reads->Wait();
}

Result<std::unique_ptr<store::PendingReads>> Memory::StartReadPages(std::span<const PageRef> pages, int32_t first_layer,
                                                                    int32_t layers, std::span<std::byte> out) const {
  const State& s = *state_;
  if (first_layer < 0 || layers < 1 || layers > s.layout.layers - first_layer) {
    return InvalidArgumentError("layers are " + std::to_string(first_layer) + " + " + std::to_string(layers) +
                                ", expected some of " + std::to_string(s.layout.layers));
  }
  std::vector<store::PageRead> reads;
  size_t offset = 0;
  {
    const std::shared_lock reading(state_->guard);
    for (const PageRef& page : pages) {
      EVERLONG_RETURN_IF_ERROR(s.OrdinalOf(page).status());
      const auto bytes =
          static_cast<size_t>(s.layout.PartBytes(static_cast<int32_t>(page.span.size())) * int64_t{layers});
      if (offset + bytes <= out.size()) {
        reads.push_back({page.block, page.page, first_layer, layers, out.subspan(offset, bytes)});
      }
      offset += bytes;
    }
  }
  if (offset != out.size()) {
    return InvalidArgumentError("out has " + std::to_string(out.size()) + " bytes, expected " + std::to_string(offset) +
                                " for these pages");
  }
  return s.store->StartReadPages(reads);
}

Status Memory::ReadKeys(const PageRef& page, int32_t layer, std::span<float> keys) const {
  const State& s = *state_;
  {
    const std::shared_lock reading(state_->guard);
    EVERLONG_RETURN_IF_ERROR(s.OrdinalOf(page).status());
  }
  if (layer < 0 || layer >= s.layout.layers) {
    return InvalidArgumentError("layer is " + std::to_string(layer) + ", expected 0 to " +
                                std::to_string(s.layout.layers - 1));
  }
  const auto tokens = static_cast<int32_t>(page.span.size());
  const size_t head_size = static_cast<size_t>(tokens) * static_cast<size_t>(s.layout.head_dim);
  const size_t size = static_cast<size_t>(s.layout.kv_heads) * head_size;
  if (keys.size() != size) {
    return InvalidArgumentError("keys has " + std::to_string(keys.size()) + " values, expected " +
                                std::to_string(size));
  }
  std::vector<std::byte> part(static_cast<size_t>(s.layout.PartBytes(tokens)));
  const store::PageRead read{page.block, page.page, layer, 1, part};
  EVERLONG_RETURN_IF_ERROR(s.store->ReadPages({&read, 1}));
  for (int32_t head = 0; head < s.layout.kv_heads; ++head) {
    kv::DecodeKeys(part, tokens, head, s.layout, keys.subspan(static_cast<size_t>(head) * head_size, head_size));
  }
  return OkStatus();
}

Result<std::vector<int32_t>> Memory::TokenIds(int64_t stream, TokenSpan span) const {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<PageRef> pages, PagesOf(stream, span));
  std::vector<int32_t> ids;
  int64_t block = 0;  // the one whose ids were taken last; ids of blocks begin at 1
  for (const PageRef& page : pages) {
    if (page.block == block) continue;
    block = page.block;
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<int32_t> of_block, state_->store->TokenIds(block));
    const int64_t block_begin = page.span.begin - int64_t{page.page} * state_->layout.page_tokens;
    const TokenSpan wanted = span.Intersect({block_begin, block_begin + static_cast<int64_t>(of_block.size())});
    ids.insert(ids.end(), of_block.begin() + (wanted.begin - block_begin),
               of_block.begin() + (wanted.end - block_begin));
  }
  return ids;
}

std::vector<float> Memory::Idf(std::span<const int32_t> token_ids) const {
  const std::shared_lock reading(state_->guard);
  return state_->statistics.Idf(token_ids);
}

std::vector<PageRef> Memory::Pages() const {
  const State& s = *state_;
  const std::shared_lock reading(state_->guard);
  std::vector<PageRef> pages;
  for (int32_t ordinal = 0; ordinal < s.directory.size(); ++ordinal) {
    if (!s.directory.at(ordinal).forgotten) pages.push_back(s.RefOf(ordinal));
  }
  return pages;
}

Result<std::vector<store::BlockInfo>> Memory::Blocks(const store::BlockFilter& filter) const {
  return state_->store->Blocks(filter);
}

Status Memory::Forget(std::span<const int64_t> blocks) {
  State& s = *state_;
  const std::scoped_lock writing(s.writer);
  EVERLONG_RETURN_IF_ERROR(s.broken);
  EVERLONG_RETURN_IF_ERROR(s.Flush());
  std::map<int64_t, std::vector<int32_t>> token_ids;
  for (const int64_t id : blocks) {
    EVERLONG_ASSIGN_OR_RETURN(token_ids[id], s.store->TokenIds(id));
  }
  const Status forgotten = s.store->Forget(blocks);
  const std::unique_lock changing(s.guard);
  for (const auto& [id, ids] : token_ids) {
    // What fails behind the commit, as giving room back may, leaves them forgotten.
    if (!forgotten.ok() && s.store->Block(id).status().code() != StatusCode::kNotFound) continue;
    if (const Status removed = s.RemoveFromIndexes(id, ids); !removed.ok()) {
      s.broken = {removed.code(), "block " + std::to_string(id) + " is forgotten but still indexed (" +
                                      removed.message() + "): open the memory anew"};
      return s.broken;
    }
  }
  s.TellIndexBytes();
  EVERLONG_RETURN_IF_ERROR(forgotten);
  // In RAM a payload's room is given back already, and Compact may never be called.
  return s.store->folder() ? OkStatus() : s.GiveBackForgotten();
}

Status Memory::Flush() {
  const std::scoped_lock writing(state_->writer);
  return state_->Flush();
}

Status Memory::SaveIndexes() {
  const std::scoped_lock writing(state_->writer);
  EVERLONG_RETURN_IF_ERROR(state_->broken);
  EVERLONG_RETURN_IF_ERROR(state_->Flush());
  // Nothing changes while the writer's lock is held, and searches go on.
  const std::shared_lock reading(state_->guard);
  return state_->SaveIndexes();
}

std::vector<std::string> Memory::TakeMessages() {
  std::vector<std::string> messages;
  {
    const std::scoped_lock taking(state_->message_guard);
    messages = std::exchange(state_->messages, {});
  }
  const std::shared_lock reading(state_->guard);
  if (!state_->heads.has_value()) return messages;
  if (const Status failure = state_->heads->TakeDeviceFailure(); !failure.ok()) {
    messages.push_back(state_->Name() + ": the retrieval heads are searched on the host (" + failure.message() + ")");
  }
  return messages;
}

Result<int64_t> Memory::Compact() {
  const std::scoped_lock writing(state_->writer);
  // Before the files of its writer are touched.
  EVERLONG_RETURN_IF_ERROR(CheckWritable(*state_->store));
  EVERLONG_RETURN_IF_ERROR(state_->broken);
  EVERLONG_RETURN_IF_ERROR(state_->Flush());
  EVERLONG_RETURN_IF_ERROR(state_->broken);  // by what the flush had to take back
  state_->RemoveSavedIndexesOfForgotten();
  EVERLONG_ASSIGN_OR_RETURN(const int64_t freed, state_->store->Compact());
  const std::unique_lock changing(state_->guard);
  EVERLONG_RETURN_IF_ERROR(state_->GiveBackForgotten());
  return freed;
}

Result<store::VerifyReport> Memory::Verify(bool repair) {
  State& s = *state_;
  const std::scoped_lock writing(s.writer);
  EVERLONG_RETURN_IF_ERROR(s.Flush());
  Result<store::VerifyReport> report = s.store->Verify(repair);
  // A repair may fail behind the commit that drops blocks.
  if (report.ok() ? !report->dropped.empty() : repair && s.IndexesBlocksThatAreGone()) {
    const std::unique_lock changing(s.guard);
    EVERLONG_RETURN_IF_ERROR(s.ReloadIndexes());
  }
  return report;
}

Status Memory::Fork(const std::filesystem::path& folder) {
  const std::scoped_lock writing(state_->writer);
  EVERLONG_RETURN_IF_ERROR(state_->broken);
  EVERLONG_RETURN_IF_ERROR(state_->Flush());
  {
    const std::shared_lock reading(state_->guard);
    EVERLONG_RETURN_IF_ERROR(state_->SaveIndexes());
  }
  return state_->store->Fork(folder, [this](const std::filesystem::path& fork) { state_->CarrySavedIndexes(fork); });
}

Status Memory::Export(const std::filesystem::path& file) {
  const std::scoped_lock writing(state_->writer);
  EVERLONG_RETURN_IF_ERROR(state_->Flush());
  return state_->store->Export(file);
}

int64_t Memory::StreamEnd(int64_t stream) const {
  const std::shared_lock reading(state_->guard);
  const auto found = state_->streams.find(stream);
  return found == state_->streams.end() ? 0 : state_->blocks.at(found->second.rbegin()->second).span.end;
}

kv::PayloadLayout Memory::layout() const { return state_->layout; }
store::Manifest Memory::manifest() const { return state_->store->manifest(); }
Status Memory::SetAttribute(const std::string& key, const std::string& value) {
  return state_->store->SetAttribute(key, value);
}
Status Memory::PutFile(const std::string& name, std::span<const std::byte> bytes) {
  return state_->store->PutFile(name, bytes);
}
Result<std::vector<store::TensorInfo>> Memory::Tensors(int64_t block) const { return state_->store->Tensors(block); }
Result<store::Tensor> Memory::ReadTensor(int64_t block, const std::string& name) const {
  return state_->store->ReadTensor(block, name);
}
Result<std::vector<std::byte>> Memory::File(const std::string& name) const { return state_->store->File(name); }
Result<store::StoreStats> Memory::Stats() const {
  EVERLONG_ASSIGN_OR_RETURN(store::StoreStats stats, state_->store->Stats());
  if (state_->text_alone()) {  // the store counts the pages that have a payload
    const std::shared_lock reading(state_->guard);
    for (const auto& [id, block] : state_->blocks) stats.pages += block.count;
  }
  return stats;
}
bool Memory::read_only() const { return state_->store->read_only(); }

}  // namespace everlong::os
