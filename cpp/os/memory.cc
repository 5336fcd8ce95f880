#include "everlong/os/memory.h"

#include <utility>

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

}  // namespace

Memory::Memory(std::unique_ptr<MemoryState> state)
    : state_(std::move(state)),
      blocks_(*state_),
      search_(*state_),
      indexes_(*state_),
      graph_(*state_),
      upkeep_(*state_) {}
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
  auto state = std::make_unique<MemoryState>(std::move(store), layout);
  EVERLONG_RETURN_IF_ERROR(state->index.Load());
  return std::unique_ptr<Memory>(new Memory(std::move(state)));
}

kv::PayloadLayout Memory::layout() const { return state_->layout; }
store::Manifest Memory::manifest() const { return state_->store->manifest(); }
bool Memory::read_only() const { return state_->store->read_only(); }
bool Memory::is_gone() const { return !read_only() && !state_->store->CheckWritable().ok(); }
Result<int64_t> Memory::Forgettings() const { return state_->store->Forgettings(); }
Status Memory::SetAttribute(const std::string& key, const std::string& value) {
  return state_->store->SetAttribute(key, value);
}
Status Memory::PutFile(const std::string& name, std::span<const std::byte> bytes) {
  return state_->store->PutFile(name, bytes);
}
Result<std::vector<std::byte>> Memory::File(const std::string& name) const { return state_->store->File(name); }

}  // namespace everlong::os
