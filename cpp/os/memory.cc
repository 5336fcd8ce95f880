#include "everlong/os/memory.h"

#include <algorithm>
#include <string>
#include <utility>

#include "everlong/base/crc32c.h"
#include "everlong/base/heap.h"
#include "everlong/kv/archive.h"
#include "memory_state.h"
#include "stored_blocks.h"

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
  // A memory of text alone has nothing to lay out. The store checks its manifest.
  if (!TextAlone(geometry)) EVERLONG_RETURN_IF_ERROR(Validate(layout));
  return layout;
}

Result<kv::PayloadLayout> LayoutOfStore(const store::MemoryStore& store) {
  auto layout = LayoutOf(store.manifest());
  if (!layout.ok()) return CorruptError(NameOf(store) + ": manifest: " + layout.status().message());
  return layout;
}

// Check that this memory could open a store that another program may have written.
Status RequireIndexable(const store::MemoryStore& store) {
  EVERLONG_ASSIGN_OR_RETURN(const kv::PayloadLayout layout, LayoutOfStore(store));
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<store::BlockInfo> infos, store.Blocks());
  StoredBlocks stored(layout, NameOf(store));
  for (const store::BlockInfo& info : infos) {
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<int32_t> token_ids, store.TokenIds(info.id));
    EVERLONG_RETURN_IF_ERROR(stored.CheckNext(info));
    EVERLONG_RETURN_IF_ERROR(stored.CheckTokenIds(info.id, info.span, token_ids));
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

// Return the ordinal of a page that a caller names; kNotFound, or kInvalidArgument when its span differs.
Result<int32_t> OrdinalOf(const index::BlockTable& table, const PageRef& page) {
  const auto name = [&page] { return "block " + std::to_string(page.block) + " page " + std::to_string(page.page); };
  const index::BlockEntry* const block = table.Find(page.block);
  if (block == nullptr || page.page < 0 || page.page >= block->page_count) {
    return NotFoundError("there is no " + name());
  }
  const int32_t ordinal = block->first_page + page.page;
  const index::PageEntry entry = table.page(ordinal);
  if (entry.stream != page.stream || entry.span != page.span || entry.sink_tokens != page.sink_tokens) {
    return InvalidArgumentError(name() + " is given as tokens " + NameOf(page.span) + " of stream " +
                                std::to_string(page.stream) + " with " + std::to_string(page.sink_tokens) +
                                " sinks, expected " + NameOf(entry.span) + " of stream " +
                                std::to_string(entry.stream) + " with " + std::to_string(entry.sink_tokens));
  }
  return ordinal;
}

}  // namespace

static_assert(store::kLargestBlockId <= index::kLargestVectorBlock);
static_assert(index::kMostPackBytes + 8 <= store::kMaxTensorName);  // MeaningTensor

PageRef RefOf(const index::BlockTable& table, int32_t ordinal) {
  const index::PageEntry page = table.page(ordinal);
  return {page.block, page.page, page.stream, page.span, page.sink_tokens};
}

void AddPagesOf(const index::BlockTable& table, const index::BlockEntry& block, std::vector<PageRef>& pages) {
  for (int32_t ordinal = block.first_page; ordinal < block.pages().last; ++ordinal) {
    pages.push_back(RefOf(table, ordinal));
  }
}

Status Memory::State::Flush() {
  std::vector<int64_t> lost;
  const Status flushed = store->Flush(&lost);
  std::map<int64_t, std::vector<int32_t>> gone;
  for (const int64_t id : lost) gone[id] = std::move(submitted[id]);
  submitted.clear();
  const auto told = ToldTagsOf(lost);
  static_cast<void>(index.Forget(gone));  // every later call reports the error
  ForgetTags(told);
  return flushed;
}

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
  EVERLONG_ASSIGN_OR_RETURN(const kv::PayloadLayout layout, LayoutOfStore(*store));
  auto state = std::make_unique<State>(std::move(store), layout);
  EVERLONG_RETURN_IF_ERROR(state->index.Load());
  return std::unique_ptr<Memory>(new Memory(std::move(state)));
}

Result<int64_t> Memory::Append(const store::BlockDraft& draft) {
  State& s = *state_;
  const auto turn = s.index.TakeTurn();
  EVERLONG_RETURN_IF_ERROR(CheckWritable(*s.store));
  EVERLONG_RETURN_IF_ERROR(s.index.broken());
  EVERLONG_RETURN_IF_ERROR(CheckDraft(draft, s.layout));
  if (const int64_t end = StreamEnd(draft.stream); draft.span.begin < end) {
    return InvalidArgumentError("span is " + NameOf(draft.span) + ", expected to begin at " + std::to_string(end) +
                                " or later, where the archived part of stream " + std::to_string(draft.stream) +
                                " ends");
  }
  // Everything that can be refused is refused before the block is stored.
  const int64_t tokens = draft.span.size();
  const DecodedBlock decoded = DecodePayload(s.layout, draft.payload, tokens, s.index.Needs());
  index::BlockInput input;
  input.page_tokens = s.layout.page_tokens;
  input.tokens = tokens;
  input.sink_tokens = draft.sink_tokens;
  input.token_ids = draft.token_ids;
  input.keys = &decoded.keys;
  input.key_sum = decoded.key_sum;
  std::vector<index::BlockTensor> tensors;
  for (const store::TensorView& tensor : draft.tensors) tensors.push_back(ViewOf(tensor));
  input.tensors = tensors;
  EVERLONG_RETURN_IF_ERROR(s.index.Check(input));

  // Allocate what a lost block needs before anything can be lost.
  std::map<int64_t, std::vector<int32_t>> noted{{0, {draft.token_ids.begin(), draft.token_ids.end()}}};
  std::vector<int64_t> page_bytes;
  for (int64_t page = 0; !draft.payload.empty() && page < s.layout.PageCount(tokens); ++page) {
    page_bytes.push_back(s.layout.PageBytes(s.layout.PageTokens(tokens, page)));
  }
  store::BlockDraft sized = draft;
  sized.page_bytes = page_bytes;
  const Result<int64_t> submitted = s.store->Submit(sized);
  if (!submitted.ok()) {
    const Status earlier = s.Flush();  // an error of the blocks before this one
    return earlier.ok() ? submitted.status() : earlier;
  }
  const int64_t id = *submitted;
  auto note = noted.extract(0);
  note.key() = id;
  s.submitted.insert(std::move(note));
  EVERLONG_RETURN_IF_ERROR(
      s.index.Append({id, draft.stream, draft.span, draft.sink_tokens, draft.created_at, draft.source, draft.tags,
                      draft.role, Crc32c(std::as_bytes(draft.token_ids))},
                     input));
  s.appended_tokens += tokens;
  if (s.appended_tokens >= State::kTrimTokens) {
    s.appended_tokens = 0;
    ReturnFreedHeap();
  }
  return id;
}

Status Memory::SetRetrievalHeads(std::vector<index::RetrievalHead> heads, index::HeadsOptions options) {
  State& s = *state_;
  const auto turn = s.index.TakeTurn();
  EVERLONG_RETURN_IF_ERROR(s.index.broken());
  EVERLONG_RETURN_IF_ERROR(CheckHeads(heads, s.layout));
  IndexSet::Make make;
  if (!heads.empty()) {
    make = [heads, options = std::move(options)](const index::PartContext& context) {
      return index::MakeHeadsPart(context, heads, options);
    };
  }
  EVERLONG_RETURN_IF_ERROR(s.index.Replace(index::IndexPart::kHeads, make));
  const std::scoped_lock setting(s.options_guard);
  s.heads = std::move(heads);
  return OkStatus();
}

std::vector<index::RetrievalHead> Memory::retrieval_heads() const {
  const std::scoped_lock reading(state_->options_guard);
  return state_->heads;
}

index::DeviceUse Memory::device_use(index::IndexPart part) const {
  const auto reading = state_->index.Read();
  const index::Part* const there = state_->index.part(part);
  return there == nullptr ? index::DeviceUse{} : there->device_use();
}

Status Memory::SetPageVectors(const PageVectorOptions& options) {
  State& s = *state_;
  if (options.dimension < 1) {
    return InvalidArgumentError("dimension is " + std::to_string(options.dimension) + ", expected at least 1");
  }
  const auto turn = s.index.TakeTurn();
  EVERLONG_RETURN_IF_ERROR(s.index.broken());
  if (s.page_vectors == options) return OkStatus();
  EVERLONG_RETURN_IF_ERROR(s.index.Replace(index::IndexPart::kEmbedding, [options](const index::PartContext& context) {
    return index::MakeEmbeddingPart(context, options);
  }));
  s.page_vectors = options;
  return OkStatus();
}

std::shared_ptr<index::NeuralInvertedIndex> Memory::page_lists() const {
  const auto reading = state_->index.Read();
  return state_->index.lists(index::IndexPart::kEmbedding);
}

Status Memory::SetPageRouter(const index::NeuralInvertedIndex::Router& router) {
  const auto turn = state_->index.TakeTurn();
  EVERLONG_RETURN_IF_ERROR(state_->index.broken());
  return state_->index.SetRouter(index::IndexPart::kEmbedding, router);
}

Status Memory::AddPageVectors(int64_t block, std::span<const int32_t> pages, std::span<const float> vectors,
                              std::span<const std::vector<int32_t>> terms) {
  State& s = *state_;
  const auto turn = s.index.TakeTurn();
  EVERLONG_RETURN_IF_ERROR(s.index.broken());
  if (!s.page_vectors) return InvalidArgumentError("vectors are given, expected none: this memory has no encoder");
  return s.index.AddVectors(index::IndexPart::kEmbedding, block, pages, vectors, terms);
}

std::vector<PageRef> Memory::PagesWithoutVectors() const {
  const auto reading = state_->index.Read();
  std::vector<PageRef> pages;
  const index::Part* const vectors = state_->index.part(index::IndexPart::kEmbedding);
  if (vectors == nullptr) return pages;
  const index::BlockTable& table = state_->index.table();
  for (int32_t number = 0; number < table.blocks(); ++number) {
    const index::BlockEntry& block = table.block(number);
    if (!block.forgotten && !vectors->Has(block)) AddPagesOf(table, block, pages);
  }
  return pages;
}

Status Memory::SetMeaning(const std::optional<MeaningOptions>& options) {
  State& s = *state_;
  if (options) EVERLONG_RETURN_IF_ERROR(Validate(*options));
  const auto turn = s.index.TakeTurn();
  EVERLONG_RETURN_IF_ERROR(s.index.broken());
  if (meaning() == options) return OkStatus();
  IndexSet::Make make;
  if (options) {
    make = [options = *options](const index::PartContext& context) { return index::MakeMeaningPart(context, options); };
  }
  EVERLONG_RETURN_IF_ERROR(s.index.Replace(index::IndexPart::kMeaning, make));
  const std::scoped_lock setting(s.options_guard);
  s.meaning = options;
  return OkStatus();
}

std::optional<MeaningOptions> Memory::meaning() const {
  const std::scoped_lock reading(state_->options_guard);
  return state_->meaning;
}

Status Memory::PutTensors(int64_t block, std::span<const store::TensorView> tensors) {
  State& s = *state_;
  const auto turn = s.index.TakeTurn();
  EVERLONG_RETURN_IF_ERROR(CheckWritable(*s.store));
  EVERLONG_RETURN_IF_ERROR(s.index.broken());
  std::vector<index::BlockTensor> views;
  for (const store::TensorView& tensor : tensors) views.push_back(ViewOf(tensor));
  EVERLONG_RETURN_IF_ERROR(store::ValidateTensors(tensors));
  EVERLONG_RETURN_IF_ERROR(s.index.CheckTensors(block, views));
  EVERLONG_RETURN_IF_ERROR(s.store->PutTensors(block, tensors));
  return s.index.TensorsCame(block, views);
}

std::vector<int64_t> Memory::BlocksWithout(index::IndexPart part) const {
  const auto reading = state_->index.Read();
  std::vector<int64_t> without;
  const index::Part* const there = state_->index.part(part);
  if (there == nullptr) return without;
  const index::BlockTable& table = state_->index.table();
  for (int32_t number = 0; number < table.blocks(); ++number) {
    const index::BlockEntry& block = table.block(number);
    if (!block.forgotten && !there->Has(block)) without.push_back(block.id);
  }
  return without;
}

Result<std::vector<PageRef>> Memory::PagesOf(int64_t stream, TokenSpan span) const {
  if (span.begin < 0 || span.end < span.begin) {
    return InvalidArgumentError("span is " + NameOf(span) + ", expected 0 <= begin <= end");
  }
  std::vector<PageRef> pages;
  if (span.empty()) return pages;
  const auto reading = state_->index.Read();
  const index::BlockTable& table = state_->index.table();
  int64_t next = span.begin;  // the first token that no page holds yet
  while (next < span.end) {
    const index::BlockEntry* const block = table.BlockAt(stream, next);
    if (block == nullptr || block->span.begin > next) break;
    const int64_t first = (next - block->span.begin) / table.page_tokens();
    for (auto page = static_cast<int32_t>(first); page < block->page_count && next < span.end; ++page) {
      pages.push_back(RefOf(table, block->first_page + page));
      next = pages.back().span.end;
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
    const auto reading = state_->index.Read();
    for (const PageRef& page : pages) {
      EVERLONG_RETURN_IF_ERROR(OrdinalOf(s.index.table(), page).status());
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
    const auto reading = state_->index.Read();
    EVERLONG_RETURN_IF_ERROR(OrdinalOf(s.index.table(), page).status());
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
  int64_t block = 0;  // the block of the ids that were read last; ids of blocks begin at 1
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
  return state_->index.statistics().Idf(token_ids);
}

std::vector<PageRef> Memory::Pages() const {
  const auto reading = state_->index.Read();
  const index::BlockTable& table = state_->index.table();
  std::vector<PageRef> pages;
  for (int32_t number = 0; number < table.blocks(); ++number) {
    if (!table.block(number).forgotten) AddPagesOf(table, table.block(number), pages);
  }
  return pages;
}

Result<std::vector<store::BlockInfo>> Memory::Blocks(const store::BlockFilter& filter) const {
  return state_->store->Blocks(filter);
}

Result<store::BlockInfo> Memory::Block(int64_t id) const { return state_->store->Block(id); }

Status Memory::Forget(std::span<const int64_t> blocks) {
  State& s = *state_;
  const auto turn = s.index.TakeTurn();
  EVERLONG_RETURN_IF_ERROR(s.index.broken());
  EVERLONG_RETURN_IF_ERROR(s.Flush());
  std::map<int64_t, std::vector<int32_t>> token_ids;
  for (const int64_t id : blocks) {
    EVERLONG_ASSIGN_OR_RETURN(token_ids[id], s.store->TokenIds(id));
  }
  const std::scoped_lock growing(s.graph_guard);
  const Status forgotten = s.ForgetFromStore(blocks);
  // An error after the commit, as of giving room back, leaves them forgotten.
  std::erase_if(token_ids, [&](const auto& of) {
    return !forgotten.ok() && s.store->Block(of.first).status().code() != StatusCode::kNotFound;
  });
  auto told = s.ToldTagsOf(blocks);
  std::erase_if(told, [&](const auto& of) { return !token_ids.contains(of.first); });
  EVERLONG_RETURN_IF_ERROR(s.index.Forget(token_ids));
  s.ForgetTags(told);
  EVERLONG_RETURN_IF_ERROR(forgotten);
  // In RAM a payload's room is given back already, and Compact may never be called.
  return s.store->folder() ? OkStatus() : s.index.GiveBackForgotten();
}

Status Memory::Flush() {
  const auto turn = state_->index.TakeTurn();
  return state_->Flush();
}

Status Memory::SaveIndexes() {
  const auto turn = state_->index.TakeTurn();
  EVERLONG_RETURN_IF_ERROR(state_->index.broken());
  EVERLONG_RETURN_IF_ERROR(state_->Flush());
  // Nothing changes during this turn, and searches go on.
  return state_->index.Save();
}

std::vector<std::string> Memory::TakeMessages() { return state_->index.TakeMessages(); }

Result<int64_t> Memory::Compact() {
  const auto turn = state_->index.TakeTurn();
  // Check it before the files of its writer are touched.
  EVERLONG_RETURN_IF_ERROR(CheckWritable(*state_->store));
  EVERLONG_RETURN_IF_ERROR(state_->index.broken());
  EVERLONG_RETURN_IF_ERROR(state_->Flush());
  EVERLONG_RETURN_IF_ERROR(state_->index.broken());  // the flush may have removed lost blocks
  const Status saved = state_->index.RemoveSavedOfForgotten();
  EVERLONG_ASSIGN_OR_RETURN(const int64_t freed, state_->store->Compact());
  EVERLONG_RETURN_IF_ERROR(state_->index.GiveBackForgotten());
  EVERLONG_RETURN_IF_ERROR(saved);
  return freed;
}

Result<store::VerifyReport> Memory::Verify(bool repair) {
  State& s = *state_;
  const auto turn = s.index.TakeTurn();
  EVERLONG_RETURN_IF_ERROR(s.Flush());
  const std::scoped_lock growing(s.graph_guard);
  Result<store::VerifyReport> report = s.store->Verify(repair);
  if (repair) s.graph.reset();  // nodes may be gone
  // Parts may hold tensors of a block that are gone now. A repair may also fail after the commit that drops blocks.
  if (report.ok() ? repair && !report->damage.empty() : repair && s.index.HasBlocksThatAreGone()) {
    EVERLONG_RETURN_IF_ERROR(s.index.Reload());
  }
  return report;
}

Status Memory::Fork(const std::filesystem::path& folder) {
  const auto turn = state_->index.TakeTurn();
  EVERLONG_RETURN_IF_ERROR(state_->index.broken());
  EVERLONG_RETURN_IF_ERROR(state_->Flush());
  EVERLONG_RETURN_IF_ERROR(state_->index.Save());
  return state_->store->Fork(folder, [this](const FilePath& fork) { state_->index.CarrySaved(fork); });
}

Status Memory::Export(const std::filesystem::path& file) {
  const auto turn = state_->index.TakeTurn();
  EVERLONG_RETURN_IF_ERROR(state_->Flush());
  return state_->store->Export(file);
}

int64_t Memory::StreamEnd(int64_t stream) const {
  const auto reading = state_->index.Read();
  return state_->index.table().StreamEnd(stream);
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
  if (state_->text_alone()) {  // the store counts only pages with a payload
    const auto reading = state_->index.Read();
    stats.pages += state_->index.table().live_pages();
  }
  return stats;
}
bool Memory::read_only() const { return state_->store->read_only(); }

}  // namespace everlong::os
