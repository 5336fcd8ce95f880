#include "index_set.h"

#include <algorithm>
#include <exception>
#include <functional>
#include <utility>

#include "everlong/graph/own_tags.h"
#include "stored_blocks.h"

namespace everlong::os {

using index::BlockEntry;
using index::BlockInput;
using index::IndexPart;
using index::Part;
using index::PartKind;

namespace {

// The writer beside a reader may merge files while they are read.
constexpr int kMostLooks = 4;

// Return whether a part takes one of these tensors by its name.
template <class Tensors, class NameOf>
bool Takes(const Part& part, const Tensors& tensors, const NameOf& name_of) {
  const std::vector<std::string> names = part.needs().tensor_names;
  return std::ranges::any_of(
      tensors, [&](const auto& name) { return std::ranges::find(names, name) != names.end(); }, name_of);
}

}  // namespace

IndexSet::IndexSet(store::MemoryStore& store, const kv::PayloadLayout& layout, const Payloads& payloads)
    : store_(store),
      layout_(layout),
      payloads_(payloads),
      table_(layout.page_tokens),
      context_{table_, statistics_, layout.layers > 0 ? layout.kv_heads : 0, layout.layers > 0 ? layout.head_dim : 0},
      parts_(index::AllIndexParts()),
      slots_(parts_.size()) {}

std::string IndexSet::Name() const { return NameOf(store_); }

Result<const BlockEntry*> IndexSet::Find(int64_t block) const {
  const BlockEntry* const found = table_.Find(block);
  if (found == nullptr) return NotFoundError("there is no block " + std::to_string(block));
  return found;
}

Part* IndexSet::part(IndexPart part) const {
  return part.number < slots_.size() ? slots_[part.number].part.get() : nullptr;
}

std::vector<const BlockEntry*> IndexSet::Without(IndexPart part) const {
  std::vector<const BlockEntry*> without;
  const Slot& slot = slots_[part.number];
  if (slot.part == nullptr) return without;
  int32_t number = slot.complete_below;
  for (; number < table_.blocks(); ++number) {
    const BlockEntry& block = table_.block(number);
    if (block.forgotten || slot.part->Has(block)) continue;
    if (without.empty()) slot.complete_below = number;
    without.push_back(&block);
  }
  if (without.empty()) slot.complete_below = number;
  return without;
}

IndexSet::Writer IndexSet::TakeTurn() { return Writer(*this); }

Result<IndexSet::Writer> IndexSet::TakeSoundTurn() {
  Writer writer = TakeTurn();
  EVERLONG_RETURN_IF_ERROR(broken_);
  return writer;
}

Status IndexSet::Load() {
  try {
    broken_ = LoadBlocks();
  } catch (const std::exception& error) {  // out of memory, with some of the blocks
    broken_ = CapacityError(std::string("the indexes could not be rebuilt (") + error.what() + "): reopen the memory");
  }
  EVERLONG_RETURN_IF_ERROR(broken_);
  TellBytes();
  return OkStatus();
}

Status IndexSet::LoadBlocks() {
  std::vector<int64_t> before;
  for (int32_t number = 0; number < table_.blocks(); ++number) {
    if (!table_.block(number).forgotten) before.push_back(table_.block(number).id);
  }
  table_ = index::BlockTable(layout_.page_tokens);
  gone_.clear();
  statistics_.Clear();
  StoredBlocks stored(layout_, Name());
  EVERLONG_RETURN_IF_ERROR(store_.VisitBlocks({}, [&](const store::BlockInfo& info) -> Result<bool> {
    EVERLONG_RETURN_IF_ERROR(stored.CheckNext(info));
    table_.Append({info.id, info.stream, info.span, info.sink_tokens, info.created_at, info.source, info.tags,
                   info.role, info.token_crc, graph::ToldBy(info.tags).happened});
    return true;
  }));
  MarkUnsaved();

  std::vector<IndexPart> of_token_ids;
  std::vector<IndexPart> of_more;
  for (const IndexPart part : parts_) {
    Slot& slot = slots_[part.number];
    slot.complete_below = 0;
    const PartKind& kind = index::KindOf(part);
    // Free a part before it is made again: there may be no room for both, here or on its device.
    if (!kind.from_caller) slot.part.reset();
    if (kind.needs_keys && layout_.layers == 0) continue;
    if (kind.made == PartKind::Made::kWithMemory) {
      slot.make = kind.make;
      EVERLONG_ASSIGN_OR_RETURN(const std::unique_ptr<Part> empty, slot.make(context_));
      (empty->needs().stored() ? of_more : of_token_ids).push_back(part);
    } else if (kind.made == PartKind::Made::kByItsOptions && slot.make && !kind.from_caller) {
      of_more.push_back(part);
    }
  }
  EVERLONG_RETURN_IF_ERROR(LoadTokenIds(of_token_ids, stored));

  ForEach([&](const PartKind& kind, Part& part) {
    if (!kind.from_caller) return;
    // What came from the caller may be nowhere else.
    for (const int64_t id : before) {
      if (table_.Find(id) != nullptr) continue;
      BlockInput gone;
      gone.id = id;
      static_cast<void>(part.Forget(gone));
    }
  });
  for (const IndexPart part : of_more) {
    Slot& slot = slots_[part.number];
    EVERLONG_ASSIGN_OR_RETURN(slot.part, Build(index::KindOf(part), slot.make));
  }
  return OkStatus();
}

Status IndexSet::LoadTokenIds(std::span<const IndexPart> parts, const StoredBlocks& stored) {
  const Part* counting = nullptr;  // its saved blocks are counted in the statistics
  for (const IndexPart part : parts) {
    Slot& slot = slots_[part.number];
    EVERLONG_ASSIGN_OR_RETURN(slot.part, MakeOfSaved(index::KindOf(part), slot.make));
    if (counting == nullptr && slot.part->CountInto(statistics_)) counting = slot.part.get();
  }
  for (int32_t number = 0; number < table_.blocks(); ++number) {
    const BlockEntry& block = table_.block(number);
    const bool counted = counting != nullptr && counting->Has(block);
    std::vector<IndexPart> lacking;
    for (const IndexPart part : parts) {
      if (!slots_[part.number].part->Has(block)) lacking.push_back(part);
    }
    if (counted && lacking.empty()) continue;
    DecodedBlock decoded;
    Result<std::vector<int32_t>> token_ids = store_.TokenIds(block.id);
    if (ForgottenByWriter(store_, token_ids.status())) {
      table_.Forget(block.id);
      continue;
    }
    EVERLONG_RETURN_IF_ERROR(token_ids.status());
    EVERLONG_RETURN_IF_ERROR(stored.CheckTokenIds(block.id, block.span, *token_ids));
    decoded.token_ids = *std::move(token_ids);
    if (!counted) statistics_.AddBlock(decoded.token_ids, layout_.page_tokens);
    const BlockInput input = InputOf(block, layout_.page_tokens, decoded);
    for (const IndexPart part : lacking) {
      EVERLONG_RETURN_IF_ERROR(slots_[part.number].part->Add(input));
      if (index::KindOf(part).saved) unsaved_.emplace(NameOf(part));
    }
  }
  return OkStatus();
}

Result<std::unique_ptr<Part>> IndexSet::MakeOfSaved(const PartKind& kind, const Make& make) {
  size_t most = SIZE_MAX;
  int looks = store_.read_only() ? kMostLooks : 1;
  std::vector<Status> wrong;
  while (true) {
    EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<Part> made, make(context_));
    bool moved = false;
    EVERLONG_ASSIGN_OR_RETURN(const Loaded loaded, LoadSaved(kind, *made, most, wrong, moved));
    if ((!wrong.empty() || moved) && looks > 1) {
      --looks;
      most = SIZE_MAX;
      wrong.clear();
      EVERLONG_RETURN_IF_ERROR(LookForGone());
    } else if (loaded != Loaded::kSpoilt) {
      for (const Status& why : wrong) Say(kind.name, why);
      return made;
    }
  }
}

Result<std::unique_ptr<Part>> IndexSet::Build(const PartKind& kind, const Make& make) {
  EVERLONG_ASSIGN_OR_RETURN(std::unique_ptr<Part> built, MakeOfSaved(kind, make));
  if (kind.from_caller) return built;  // the caller also adds what it lacks
  std::vector<const BlockEntry*> missing;
  for (int32_t number = 0; number < table_.blocks(); ++number) {
    const BlockEntry& block = table_.block(number);
    if (!block.forgotten && !built->Has(block)) missing.push_back(&block);
  }
  if (kind.saved && !missing.empty()) unsaved_.emplace(kind.name);
  // The payload makes room before the part needs it.
  TellBytes(built->BytesFor(table_.pages()));
  std::vector<Status> damaged;
  const Status filled = BlockReader(store_, layout_, payloads_)
                            .Visit(
                                missing, built->needs(),
                                [&](const BlockEntry& block, const DecodedBlock& decoded) {
                                  return built->Add(InputOf(block, layout_.page_tokens, decoded));
                                },
                                damaged);
  for (const BlockEntry* const block : missing) {
    if (built->Has(*block)) NoteChanged(kind.name, block->id);
  }
  for (const Status& tensor : damaged) SayDamaged(kind.name, tensor);
  if (!filled.ok()) {
    TellBytes();  // the part was not made, so the payload gets its room back
    return filled;
  }
  return built;
}

index::PartNeeds IndexSet::Writer::Needs() const {
  index::PartNeeds all;
  set_->ForEach([&all](const PartKind& /*kind*/, const Part& part) {
    const index::PartNeeds needs = part.needs();
    for (const index::KeyHead& head : needs.keys) {
      if (std::ranges::find(all.keys, head) == all.keys.end()) all.keys.push_back(head);
    }
    all.token_ids = all.token_ids || needs.token_ids;
    all.key_sum = all.key_sum || needs.key_sum;
    all.tensors = all.tensors || needs.tensors;
  });
  return all;
}

Status IndexSet::Writer::Check(const BlockInput& block) const {
  Status checked;
  set_->ForEach([&](const PartKind& /*kind*/, const Part& part) {
    if (checked.ok()) checked = part.Check(block);
  });
  return checked;
}

Status IndexSet::BreakUnless(const Status& change, const std::string& stored) {
  if (change.ok()) return OkStatus();
  const auto changing = Change();
  broken_ = {change.code(), stored + " (" + change.message() + "): reopen the memory"};
  return broken_;
}

Status IndexSet::Writer::Append(const index::NewBlock& block, BlockInput input) {
  input.id = block.id;
  input.first_page = set_->table_.pages();
  Status added;
  try {
    set_->ForEach([&](const PartKind& /*kind*/, Part& part) {
      if (added.ok()) added = part.Add(input);
    });
    if (added.ok()) {
      set_->MarkUnsaved();
      set_->statistics_.AddBlock(input.token_ids, set_->layout_.page_tokens);
      const auto changing = set_->Change();
      set_->table_.Append(block);
    }
  } catch (const std::exception& error) {  // out of memory
    added = CapacityError(error.what());
  }
  EVERLONG_RETURN_IF_ERROR(
      set_->BreakUnless(added, "block " + std::to_string(block.id) + " is stored but could not be indexed"));
  set_->TellBytes();
  return OkStatus();
}

Status IndexSet::Writer::Forget(const std::map<int64_t, std::vector<int32_t>>& token_ids) {
  struct Gone {
    BlockEntry block;
    const std::vector<int32_t>* token_ids;
  };
  std::vector<Gone> gone;
  for (const auto& [id, ids] : token_ids) {
    if (const BlockEntry* const block = set_->table_.Find(id)) gone.push_back({*block, &ids});
  }
  if (gone.empty()) return OkStatus();
  set_->MarkUnsaved();
  {
    // Searches that may be looking at them end before this.
    const auto changing = set_->Change();
    for (const Gone& of : gone) set_->table_.Forget(of.block.id);
  }
  for (const Gone& of : gone) {
    for (const IndexPart part : set_->parts_) set_->NoteChanged(NameOf(part), of.block.id);
    BlockInput input = InputOf(of.block, set_->layout_.page_tokens, {});
    input.token_ids = *of.token_ids;
    set_->statistics_.RemoveBlock(input.token_ids, set_->layout_.page_tokens);
    Status removed;
    set_->ForEach([&](const PartKind& /*kind*/, Part& part) {
      if (removed.ok()) removed = part.Forget(input);
    });
    EVERLONG_RETURN_IF_ERROR(
        set_->BreakUnless(removed, "block " + std::to_string(of.block.id) + " is forgotten but still indexed"));
  }
  set_->TellBytes();
  return OkStatus();
}

Status IndexSet::Writer::Reload() {
  const auto changing = set_->Change();
  return set_->Load();
}

Status IndexSet::Writer::GiveBackForgotten() {
  const int32_t kept = set_->table_.live_pages();
  const int32_t forgotten = set_->table_.pages() - kept;
  if (forgotten <= kept || (set_->store_.folder() && kept > 0)) return OkStatus();
  return Reload();
}

bool IndexSet::Writer::HasBlocksThatAreGone() const {
  for (int32_t number = 0; number < set_->table_.blocks(); ++number) {
    const BlockEntry& block = set_->table_.block(number);
    if (!block.forgotten && set_->store_.Block(block.id).status().code() == StatusCode::kNotFound) return true;
  }
  return false;
}

Status IndexSet::Writer::Replace(IndexPart part, const Make& make) {
  std::unique_ptr<Part> built;
  if (make) {
    EVERLONG_ASSIGN_OR_RETURN(built, set_->Build(index::KindOf(part), make));
  }
  {
    const auto changing = set_->Change();
    std::swap(set_->slots_[part.number].part, built);
    set_->slots_[part.number].complete_below = 0;
    set_->slots_[part.number].make = make;
  }
  built.reset();  // the old part
  set_->TellBytes();
  return OkStatus();
}

Status IndexSet::Writer::AddVectors(IndexPart part, int64_t block, std::span<const int32_t> pages,
                                    std::span<const float> vectors, std::span<const std::vector<int32_t>> terms) {
  EVERLONG_ASSIGN_OR_RETURN(const BlockEntry* const found, set_->Find(block));
  set_->unsaved_.emplace(NameOf(part));
  EVERLONG_RETURN_IF_ERROR(set_->slots_[part.number].part->AddVectors(*found, pages, vectors, terms));
  set_->TellBytes();
  return OkStatus();
}

std::shared_ptr<index::NeuralInvertedIndex> IndexSet::lists(IndexPart part) const {
  const Part* const there = slots_[part.number].part.get();
  return there == nullptr ? nullptr : there->lists();
}

Status IndexSet::Writer::SetRouter(IndexPart part, const index::NeuralInvertedIndex::Router& router) {
  const std::shared_ptr<index::NeuralInvertedIndex> there = set_->lists(part);
  if (there == nullptr) return InvalidArgumentError("a router is given, expected none: the vectors have no lists");
  EVERLONG_RETURN_IF_ERROR(there->SetRouter(router));
  set_->unsaved_.emplace(NameOf(part));
  return OkStatus();
}

Result<BlockInput> IndexSet::InputWith(int64_t block, std::span<const index::BlockTensor> tensors) const {
  EVERLONG_ASSIGN_OR_RETURN(const BlockEntry* const found, Find(block));
  BlockInput input = InputOf(*found, layout_.page_tokens, {});
  input.keys = nullptr;
  input.tensors = tensors;
  return input;
}

Status IndexSet::Writer::CheckTensors(int64_t block, std::span<const index::BlockTensor> tensors) const {
  EVERLONG_ASSIGN_OR_RETURN(const BlockInput input, set_->InputWith(block, tensors));
  Status checked;
  set_->ForEach([&](const PartKind& /*kind*/, const Part& part) {
    if (checked.ok()) checked = part.CheckTensors(input);
  });
  return checked;
}

Status IndexSet::Writer::TensorsCame(int64_t block, std::span<const index::BlockTensor> tensors) {
  EVERLONG_ASSIGN_OR_RETURN(const BlockInput input, set_->InputWith(block, tensors));
  Status came;
  try {
    const auto changing = set_->Change();
    set_->ForEach([&](const PartKind& kind, Part& part) {
      if (!came.ok() || !part.needs().tensors) return;
      if (kind.saved) set_->unsaved_.emplace(kind.name);
      if (Takes(part, tensors, &index::BlockTensor::name)) set_->NoteChanged(kind.name, block);
      came = part.TensorsCame(input);
    });
  } catch (const std::exception& error) {  // out of memory
    came = CapacityError(error.what());
  }
  EVERLONG_RETURN_IF_ERROR(
      set_->BreakUnless(came, "tensors of block " + std::to_string(block) + " are stored but could not be indexed"));
  set_->TellBytes();
  return OkStatus();
}

Status IndexSet::Writer::TensorsWent(int64_t block, std::span<const std::string> names) {
  EVERLONG_ASSIGN_OR_RETURN(const BlockInput input, set_->InputWith(block, {}));
  Status went;
  {
    const auto changing = set_->Change();
    for (const Slot& slot : set_->slots_) slot.complete_below = 0;
    set_->ForEach([&](const PartKind& kind, Part& part) {
      if (!went.ok() || !Takes(part, names, std::identity())) return;
      if (kind.saved) set_->unsaved_.emplace(kind.name);
      set_->NoteChanged(kind.name, block);
      went = part.TensorsWent(input, names);
    });
  }
  EVERLONG_RETURN_IF_ERROR(
      set_->BreakUnless(went, "tensors of block " + std::to_string(block) + " are dropped but still indexed"));
  set_->TellBytes();
  return OkStatus();
}

void IndexSet::Writer::SetTags(int64_t block, std::span<const std::string> tags) {
  {
    const auto changing = set_->Change();
    set_->table_.SetTags(block, tags, graph::ToldBy(tags).happened);
  }
  set_->TellBytes();
}

Status IndexSet::MakeWhenAsked(IndexPart part) {
  {
    const Lock reading = Read();
    if (slots_[part.number].part != nullptr) return OkStatus();
  }
  Writer writer = TakeTurn();
  if (slots_[part.number].part != nullptr) return OkStatus();
  return writer.Replace(part, index::KindOf(part).make);
}

Result<IndexSet::Lock> IndexSet::ReadWith(std::span<const IndexPart> asked) {
  const auto made_when_asked = [](IndexPart part) { return index::KindOf(part).made == PartKind::Made::kWhenAsked; };
  while (true) {
    for (const IndexPart part : asked) {
      if (made_when_asked(part)) EVERLONG_RETURN_IF_ERROR(MakeWhenAsked(part));
    }
    Lock reading = Read();
    // A repair may have dropped them before this lock.
    const bool all_there = std::ranges::all_of(
        asked, [&](IndexPart part) { return !made_when_asked(part) || slots_[part.number].part != nullptr; });
    if (all_there) return reading;
  }
}

void IndexSet::TellBytes(int64_t more) const {
  int64_t bytes = more + bytes_beside_ + table_.bytes() + statistics_.bytes();
  ForEach([&bytes](const PartKind& /*kind*/, const Part& part) { bytes += part.bytes(); });
  store_.SetIndexBytes(bytes);
}

void IndexSet::SayDamaged(std::string_view name, const Status& why) const {
  std::string message = Name() + ": the index \"";
  message.append(name).append("\" does without a tensor that is damaged (").append(why.message()).append(")");
  AddMessage(std::move(message));
}

void IndexSet::AddMessage(std::string message) const {
  const std::scoped_lock saying(message_guard_);
  messages_.push_back(std::move(message));
}

std::vector<std::string> IndexSet::TakeMessages() const {
  std::vector<std::string> messages;
  {
    const std::scoped_lock taking(message_guard_);
    messages = std::exchange(messages_, {});
  }
  const Lock reading = Read();
  ForEach([&](const PartKind& /*kind*/, const Part& part) {
    for (const std::string& message : part.TakeMessages()) messages.push_back(Name() + ": " + message);
  });
  return messages;
}

}  // namespace everlong::os
