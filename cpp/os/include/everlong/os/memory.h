// A memory: the store and the indexes of one conversation or library. The index is built from the store, from the same
// bytes that a recall restores. So a reopened memory answers as the open one did. Saved indexes are used where they
// fit.
#pragma once

#include <cstddef>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/kv/payload.h"
#include "everlong/os/blocks.h"
#include "everlong/os/graph.h"
#include "everlong/os/index.h"
#include "everlong/os/search.h"
#include "everlong/os/upkeep.h"
#include "everlong/store/memory_store.h"

namespace everlong::os {

// Thread-safe, as its objects say. A read-only memory is indexed as it was when it was opened.
class Memory {
 public:
  static Result<std::unique_ptr<Memory>> Create(const std::optional<std::filesystem::path>& folder,
                                                const store::Manifest& manifest,
                                                const store::StoreOptions& options = {});
  static Result<std::unique_ptr<Memory>> Open(const std::filesystem::path& folder, bool read_only,
                                              const store::StoreOptions& options = {});
  // Make a new memory with all that Export wrote into `file`.
  static Result<std::unique_ptr<Memory>> Import(const std::filesystem::path& file,
                                                const std::optional<std::filesystem::path>& folder,
                                                const store::StoreOptions& options = {});

  // They live as long as the memory.
  [[nodiscard]] Blocks& blocks() { return blocks_; }
  [[nodiscard]] const Blocks& blocks() const { return blocks_; }
  [[nodiscard]] Searcher& search() { return search_; }
  [[nodiscard]] const Searcher& search() const { return search_; }
  [[nodiscard]] Indexes& index() { return indexes_; }
  [[nodiscard]] const Indexes& index() const { return indexes_; }
  [[nodiscard]] BlockGraph& graph() { return graph_; }
  [[nodiscard]] const BlockGraph& graph() const { return graph_; }
  [[nodiscard]] Upkeep& upkeep() { return upkeep_; }
  [[nodiscard]] const Upkeep& upkeep() const { return upkeep_; }

  [[nodiscard]] kv::PayloadLayout layout() const;
  [[nodiscard]] store::Manifest manifest() const;
  [[nodiscard]] bool read_only() const;
  // Whether the folder was removed or replaced since it was opened for writing. Then nothing is written any more.
  [[nodiscard]] bool is_gone() const;
  // Call the store's methods.
  [[nodiscard]] Result<int64_t> Forgettings() const;
  Status SetAttribute(const std::string& key, const std::string& value);
  Status PutFile(const std::string& name, std::span<const std::byte> bytes);
  [[nodiscard]] Result<std::vector<std::byte>> File(const std::string& name) const;

  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

 private:
  static Result<std::unique_ptr<Memory>> Over(std::unique_ptr<store::MemoryStore> store);
  explicit Memory(std::unique_ptr<MemoryState> state);

  std::unique_ptr<MemoryState> state_;
  Blocks blocks_;
  Searcher search_;
  Indexes indexes_;
  BlockGraph graph_;
  Upkeep upkeep_;
};

}  // namespace everlong::os
