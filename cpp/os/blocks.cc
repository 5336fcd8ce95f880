#include "everlong/os/blocks.h"

#include <algorithm>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "at_least.h"
#include "block_reader.h"
#include "everlong/base/crc32c.h"
#include "everlong/base/heap.h"
#include "everlong/graph/own_tags.h"
#include "everlong/kv/archive.h"
#include "memory_state.h"

namespace everlong::os {
namespace {

// Forget blocks on a full disk: in halves where all at once take too much. Add to `freed` the bytes that were given
// back.
Status ForgetInParts(MemoryState& state, std::span<const int64_t> blocks, int64_t& freed) {
  const Status forgotten = state.growth.Forget(blocks);
  if (forgotten.ok()) {
    EVERLONG_ASSIGN_OR_RETURN(const int64_t given_back, state.store->MakeRoom());
    freed += given_back;
    return OkStatus();
  }
  if (forgotten.code() != StatusCode::kIoError || blocks.size() < 2) return forgotten;
  const size_t half = blocks.size() / 2;
  EVERLONG_RETURN_IF_ERROR(ForgetInParts(state, blocks.first(half), freed));
  return ForgetInParts(state, blocks.subspan(half), freed);
}

// Forget blocks. Where the system refuses to write, give back what takes room, and try again.
Status ForgetMakingRoom(MemoryState& state, std::span<const int64_t> blocks, int64_t& freed) {
  const Status forgotten = state.growth.Forget(blocks);
  const auto is_there = [&state](int64_t id) { return state.store->Block(id).ok(); };
  if (forgotten.code() != StatusCode::kIoError || !std::ranges::all_of(blocks, is_there)) return forgotten;
  const Result<int64_t> given_back = state.store->MakeRoom();
  if (!given_back.ok()) return forgotten;
  freed = *given_back;
  const std::set<int64_t> once(blocks.begin(), blocks.end());
  const Status in_parts = ForgetInParts(state, std::vector(once.begin(), once.end()), freed);
  state.store->KeepReserve();
  return in_parts;
}

Status CheckDraft(const store::BlockDraft& draft, const kv::PayloadLayout& layout) {
  EVERLONG_RETURN_IF_ERROR(store::ValidateBlock(draft));
  EVERLONG_RETURN_IF_ERROR(AtLeast("stream", draft.stream, 0));
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

// Return whether a block passes. Without roles in the filter, a block of any role does.
bool Passes(const store::BlockInfo& info, const index::SearchFilter& filter) {
  if ((filter.since && info.created_at < *filter.since) || (filter.before && info.created_at >= *filter.before) ||
      (filter.roles && !filter.roles->Has(info.role))) {
    return false;
  }
  const auto has = [](const std::vector<std::string>& names, const std::string& name) {
    return std::ranges::find(names, name) != names.end();
  };
  if (!filter.sources.empty() && !has(filter.sources, info.source)) return false;
  if (!std::ranges::all_of(filter.tags, [&](const std::string& tag) { return has(info.tags, tag); })) return false;
  for (const std::string& tag : filter.newest_tags) {
    const auto alike = [&](const std::string& other) { return other.starts_with(index::KindOfTag(tag)); };
    const auto newest = std::ranges::find_if(info.tags.rbegin(), info.tags.rend(), alike);
    if (newest == info.tags.rend() || *newest != tag) return false;
  }
  if (!filter.happened_since && !filter.happened_before) return true;
  const double happened = graph::ToldBy(info.tags).happened.value_or(info.created_at);
  return !(filter.happened_since && happened < *filter.happened_since) &&
         !(filter.happened_before && happened >= *filter.happened_before);
}

// Whether a filter chooses by tags, which a block may get later; by anything.
bool ChoosesByTags(const index::SearchFilter& filter) {
  return !filter.tags.empty() || !filter.newest_tags.empty() || filter.happened_since || filter.happened_before;
}
bool Chooses(const index::SearchFilter& filter) {
  return ChoosesByTags(filter) || !filter.sources.empty() || filter.since || filter.before || filter.roles;
}

// Blocks as the index knows them.
struct KnownBlocks {
  std::vector<int64_t> ids;  // ascending
  int64_t until = 0;         // those with larger ids are not known
};

// Return the blocks behind an id that pass, where looking up those that a slice takes costs less than a pass over all
// rows. A reader's index does not know what the writer added since: blocks, and tags of earlier ones.
std::optional<KnownBlocks> FewOf(const MemoryState& state, index::SearchFilter filter, const BlockSlice& slice) {
  constexpr int64_t kLookup = 8;  // rows of a pass that one costs
  if (!Chooses(filter) || (state.store->read_only() && ChoosesByTags(filter))) return std::nullopt;
  if (!filter.roles) filter.roles = Roles::All();
  const auto reading = state.index.Read();
  if (!state.index.broken().ok()) return std::nullopt;
  const index::BlockTable& table = state.index.table();
  KnownBlocks known{table.Passing(filter), table.blocks() > 0 ? table.block(table.blocks() - 1).id : 0};
  known.ids.erase(known.ids.begin(), std::ranges::upper_bound(known.ids, slice.behind));
  if (std::min<int64_t>(std::ssize(known.ids), slice.most) * kLookup > table.live_blocks()) return std::nullopt;
  return known;
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

// Take the tags of a block, which were stored, into the index.
Status TagsChanged(MemoryState& state, IndexSet::Writer& writer, int64_t block) {
  EVERLONG_ASSIGN_OR_RETURN(const store::BlockInfo info, state.store->Block(block));
  writer.SetTags(block, info.tags);
  state.tags.Added(block);
  return OkStatus();
}

}  // namespace

Result<int64_t> Blocks::Append(const store::BlockDraft& draft) {
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.TurnToWrite());
  EVERLONG_RETURN_IF_ERROR(CheckDraft(draft, state_.layout));
  if (const int64_t end = StreamEnd(draft.stream); draft.span.begin < end) {
    return InvalidArgumentError("span is " + NameOf(draft.span) + ", expected to begin at " + std::to_string(end) +
                                " or later, where the archived part of stream " + std::to_string(draft.stream) +
                                " ends");
  }
  // Everything that can be refused is refused before the block is stored.
  const int64_t tokens = draft.span.size();
  const DecodedBlock decoded = DecodePayload(state_.layout, draft.payload, tokens, writer.Needs());
  index::BlockInput input;
  input.page_tokens = state_.layout.page_tokens;
  input.tokens = tokens;
  input.sink_tokens = draft.sink_tokens;
  input.token_ids = draft.token_ids;
  input.keys = &decoded.keys;
  input.key_sum = decoded.key_sum;
  std::vector<index::BlockTensor> tensors;
  for (const store::TensorView& tensor : draft.tensors) tensors.push_back(ViewOf(tensor));
  input.tensors = tensors;
  EVERLONG_RETURN_IF_ERROR(writer.Check(input));

  // Allocate what a lost block needs before anything can be lost.
  std::map<int64_t, std::vector<int32_t>> noted{{0, {draft.token_ids.begin(), draft.token_ids.end()}}};
  std::vector<int64_t> page_bytes;
  for (int64_t page = 0; !draft.payload.empty() && page < state_.layout.PageCount(tokens); ++page) {
    page_bytes.push_back(state_.layout.PageBytes(state_.layout.PageTokens(tokens, page)));
  }
  store::BlockDraft sized = draft;
  sized.page_bytes = page_bytes;
  std::erase_if(sized.tags, Payloads::IsCodecTag);  // it is coded as the memory is
  const Result<int64_t> submitted = state_.store->Submit(sized);
  if (!submitted.ok()) {
    const Status earlier = state_.Flush(writer);  // an error of the blocks before this one
    return earlier.ok() ? submitted.status() : earlier;
  }
  const int64_t id = *submitted;
  if (state_.store->folder()) {  // in RAM it is stored by now
    auto note = noted.extract(0);
    note.key() = id;
    state_.submitted.insert(std::move(note));
  }
  EVERLONG_RETURN_IF_ERROR(
      writer.Append({id, draft.stream, draft.span, draft.sink_tokens, draft.created_at, draft.source, sized.tags,
                     draft.role, Crc32c(std::as_bytes(draft.token_ids)), graph::ToldBy(draft.tags).happened},
                    input));
  state_.appended_tokens += tokens;
  if (state_.appended_tokens >= MemoryState::kTrimTokens) {
    state_.appended_tokens = 0;
    ReturnFreedHeapOnceGrown();
  }
  return id;
}

Status Blocks::PutTensors(int64_t block, std::span<const store::TensorView> tensors) {
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.TurnToWrite());
  std::vector<index::BlockTensor> views;
  for (const store::TensorView& tensor : tensors) views.push_back(ViewOf(tensor));
  EVERLONG_RETURN_IF_ERROR(store::ValidateTensors(tensors));
  EVERLONG_RETURN_IF_ERROR(writer.CheckTensors(block, views));
  EVERLONG_RETURN_IF_ERROR(state_.store->PutTensors(block, tensors));
  return writer.TensorsCame(block, views);
}

Status Blocks::DropTensors(int64_t block, std::span<const std::string> names) {
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.TurnToWrite());
  EVERLONG_RETURN_IF_ERROR(state_.Flush(writer));
  EVERLONG_RETURN_IF_ERROR(state_.store->DropTensors(block, names));
  return writer.TensorsWent(block, names);
}

Status Blocks::AddTags(int64_t block, std::span<const std::string> tags) {
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.index.TakeSoundTurn());
  if (const auto codec = std::ranges::find_if(tags, Payloads::IsCodecTag); codec != tags.end()) {
    return InvalidArgumentError("the tag " + *codec + " says how a payload is coded: only coding it anew sets it");
  }
  EVERLONG_RETURN_IF_ERROR(state_.store->AddTags(block, tags));
  return TagsChanged(state_, writer, block);
}

Status Blocks::SetTags(int64_t block, std::span<const std::string> tags) {
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.index.TakeSoundTurn());
  EVERLONG_ASSIGN_OR_RETURN(const store::BlockInfo info, state_.store->Block(block));
  EVERLONG_RETURN_IF_ERROR(state_.store->SetTags(block, Payloads::WithCodecOf(info, tags)));
  return TagsChanged(state_, writer, block);
}

Result<std::vector<PageRef>> Blocks::PagesOf(int64_t stream, TokenSpan span) const {
  if (span.begin < 0 || span.end < span.begin) {
    return InvalidArgumentError("span is " + NameOf(span) + ", expected 0 <= begin <= end");
  }
  std::vector<PageRef> pages;
  if (span.empty()) return pages;
  const auto reading = state_.index.Read();
  const index::BlockTable& table = state_.index.table();
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

Result<std::string> Blocks::Codec(int64_t block) const {
  EVERLONG_ASSIGN_OR_RETURN(BlockCoding coding, state_.payloads.CodingOf(block));
  return std::move(coding.name);
}
Result<kv::PayloadLayout> Blocks::Layout(int64_t block) const {
  EVERLONG_ASSIGN_OR_RETURN(const BlockCoding coding, state_.payloads.CodingOf(block));
  return coding.layout;
}

Status Blocks::ReadPages(std::span<const PageRef> pages, std::span<std::byte> out,
                         std::optional<kv::Codec> codec) const {
  EVERLONG_ASSIGN_OR_RETURN(const std::unique_ptr<store::PendingReads> reads,
                            StartReadPages(pages, 0, state_.layout.layers, out, codec));
  return reads->Wait();
}

Result<std::unique_ptr<store::PendingReads>> Blocks::StartReadPages(std::span<const PageRef> pages, int32_t first_layer,
                                                                    int32_t layers, std::span<std::byte> out,
                                                                    std::optional<kv::Codec> codec) const {
  if (first_layer < 0 || layers < 1 || layers > state_.layout.layers - first_layer) {
    return InvalidArgumentError("layers are " + std::to_string(first_layer) + " + " + std::to_string(layers) +
                                ", expected some of " + std::to_string(state_.layout.layers));
  }
  kv::PayloadLayout layout = state_.layout;
  layout.codec = codec.value_or(layout.codec);
  std::vector<PayloadRead> reads;
  size_t offset = 0;
  {
    const auto reading = state_.index.Read();
    for (const PageRef& page : pages) {
      EVERLONG_RETURN_IF_ERROR(OrdinalOf(state_.index.table(), page).status());
      const auto tokens = static_cast<int32_t>(page.span.size());
      const auto bytes = static_cast<size_t>(layout.PartBytes(tokens) * int64_t{layers});
      if (offset + bytes <= out.size()) {
        reads.push_back({page.block, page.page, tokens, first_layer, layers, out.subspan(offset, bytes)});
      }
      offset += bytes;
    }
  }
  if (offset != out.size()) {
    return InvalidArgumentError("out has " + std::to_string(out.size()) + " bytes, expected " + std::to_string(offset) +
                                " for these pages");
  }
  return state_.payloads.Start(reads, layout.codec);
}

Status Blocks::ReadKeys(const PageRef& page, int32_t layer, std::span<float> keys) const {
  {
    const auto reading = state_.index.Read();
    EVERLONG_RETURN_IF_ERROR(OrdinalOf(state_.index.table(), page).status());
  }
  if (layer < 0 || layer >= state_.layout.layers) {
    return InvalidArgumentError("layer is " + std::to_string(layer) + ", expected 0 to " +
                                std::to_string(state_.layout.layers - 1));
  }
  const auto tokens = static_cast<int32_t>(page.span.size());
  const size_t head_size = static_cast<size_t>(tokens) * static_cast<size_t>(state_.layout.head_dim);
  const size_t size = static_cast<size_t>(state_.layout.kv_heads) * head_size;
  if (keys.size() != size) {
    return InvalidArgumentError("keys has " + std::to_string(keys.size()) + " values, expected " +
                                std::to_string(size));
  }
  EVERLONG_ASSIGN_OR_RETURN(const kv::PayloadLayout layout, Layout(page.block));
  std::vector<std::byte> part(static_cast<size_t>(layout.PartBytes(tokens)));
  EVERLONG_ASSIGN_OR_RETURN(const auto reads, StartReadPages({&page, 1}, layer, 1, part, layout.codec));
  EVERLONG_RETURN_IF_ERROR(reads->Wait());
  for (int32_t head = 0; head < layout.kv_heads; ++head) {
    kv::DecodeKeys(part, tokens, head, layout, keys.subspan(static_cast<size_t>(head) * head_size, head_size));
  }
  return OkStatus();
}

Result<std::vector<int32_t>> Blocks::TokenIds(int64_t stream, TokenSpan span) const {
  EVERLONG_ASSIGN_OR_RETURN(const std::vector<PageRef> pages, PagesOf(stream, span));
  std::vector<int32_t> ids;
  int64_t block = 0;  // the block of the ids that were read last; ids of blocks begin at 1
  for (const PageRef& page : pages) {
    if (page.block == block) continue;
    block = page.block;
    EVERLONG_ASSIGN_OR_RETURN(const std::vector<int32_t> of_block, state_.store->TokenIds(block));
    const int64_t block_begin = page.span.begin - int64_t{page.page} * state_.layout.page_tokens;
    const TokenSpan wanted = span.Intersect({block_begin, block_begin + static_cast<int64_t>(of_block.size())});
    ids.insert(ids.end(), of_block.begin() + (wanted.begin - block_begin),
               of_block.begin() + (wanted.end - block_begin));
  }
  return ids;
}

std::vector<PageRef> Blocks::Pages() const {
  const auto reading = state_.index.Read();
  const index::BlockTable& table = state_.index.table();
  std::vector<PageRef> pages;
  for (int32_t number = 0; number < table.blocks(); ++number) {
    if (!table.block(number).forgotten) AddPagesOf(table, table.block(number), pages);
  }
  return pages;
}

Status Blocks::Forget(std::span<const int64_t> blocks, int64_t* freed) {
  EVERLONG_ASSIGN_OR_RETURN(auto writer, state_.index.TakeSoundTurn());
  EVERLONG_RETURN_IF_ERROR(state_.Flush(writer));
  std::map<int64_t, std::vector<int32_t>> token_ids;
  for (const int64_t id : blocks) {
    EVERLONG_ASSIGN_OR_RETURN(token_ids[id], state_.store->TokenIds(id));
  }
  const auto growing = state_.growth.Hold();
  int64_t given_back = 0;
  const Status forgotten = ForgetMakingRoom(state_, blocks, given_back);
  if (freed != nullptr) *freed = given_back;
  // An error after the commit, as of giving room back, leaves them forgotten.
  std::erase_if(token_ids, [&](const auto& of) {
    return !forgotten.ok() && state_.store->Block(of.first).status().code() != StatusCode::kNotFound;
  });
  auto told = state_.tags.ToldOf(blocks);
  std::erase_if(told, [&](const auto& of) { return !token_ids.contains(of.first); });
  EVERLONG_RETURN_IF_ERROR(writer.Forget(token_ids));
  state_.tags.Forget(told);
  EVERLONG_RETURN_IF_ERROR(forgotten);
  // In RAM a payload's room is given back already, and Compact may never be called.
  return state_.store->folder() ? OkStatus() : writer.GiveBackForgotten();
}

int64_t Blocks::StreamEnd(int64_t stream) const {
  const auto reading = state_.index.Read();
  return state_.index.table().StreamEnd(stream);
}

Result<std::vector<store::BlockInfo>> Blocks::Infos(const index::SearchFilter& filter, const BlockSlice& slice) const {
  EVERLONG_RETURN_IF_ERROR(AtLeast("most", slice.most, 1));
  std::vector<store::BlockInfo> infos;
  // Take a block; return whether there is room for another.
  const auto take = [&](store::BlockInfo&& info) {
    if (Passes(info, filter)) infos.push_back(std::move(info));
    return std::ssize(infos) < slice.most;
  };
  const auto look_up = [&](std::span<const int64_t> ids) -> Result<bool> {
    for (const int64_t id : ids) {
      Result<store::BlockInfo> info = state_.store->Block(id);
      if (info.status().code() == StatusCode::kNotFound) continue;  // forgotten meanwhile, or lost
      EVERLONG_RETURN_IF_ERROR(info.status());
      if (!take(std::move(info).value())) return false;
    }
    return true;
  };
  store::BlockFilter rest;
  if (slice.behind > 0) rest.behind = slice.behind;
  if (slice.among) {
    const std::set<int64_t> once(slice.among->begin(), slice.among->end());
    EVERLONG_RETURN_IF_ERROR(look_up(std::vector(once.upper_bound(slice.behind), once.end())).status());
    return infos;
  }
  if (const std::optional<KnownBlocks> known = FewOf(state_, filter, slice)) {
    EVERLONG_ASSIGN_OR_RETURN(const bool goes_on, look_up(known->ids));
    if (!goes_on || !state_.store->read_only()) return infos;
    rest.behind = std::max(slice.behind, known->until);
  }
  rest.since = filter.since;
  rest.before = filter.before;
  rest.roles = filter.roles;
  EVERLONG_RETURN_IF_ERROR(state_.store->VisitBlocks(rest, take));
  return infos;
}
Result<store::BlockInfo> Blocks::Info(int64_t id) const { return state_.store->Block(id); }
Result<std::vector<store::TensorInfo>> Blocks::Tensors(int64_t block) const { return state_.store->Tensors(block); }
Result<store::Tensor> Blocks::ReadTensor(int64_t block, const std::string& name) const {
  return state_.store->ReadTensor(block, name);
}

}  // namespace everlong::os
