// Indexes kept in a memory's folder, each beside the list of blocks that it covers: what fits the catalog is loaded and
// brought up to date, anything else is made anew (docs/format.md, "Index files").
#pragma once

#include <cstdint>
#include <filesystem>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/status.h"

namespace everlong::os {

// What an index knows a block by. Ids are never given twice in a memory; the rest tells another memory's block.
struct CoveredBlock {
  int64_t id = 0;
  int64_t stream = 0;
  int64_t begin = 0;  // tokens of the stream
  int64_t end = 0;
  int64_t sink_tokens = 0;
  double created_at = 0;
  bool operator==(const CoveredBlock&) const = default;
};

// Which blocks a saved index has, in its order, and those of them that are still in the memory.
struct Coverage {
  std::vector<CoveredBlock> blocks;
  std::vector<uint8_t> kept;  // [blocks]
  bool gaps = false;          // older blocks of the memory are missing among them
  uint32_t checksum = 0;      // of the index, for SavedIndex::CheckIs
};

// One saved index: FOLDER/NAME beside FOLDER/NAME.blocks.
class SavedIndex {
 public:
  SavedIndex(const std::filesystem::path& folder, const std::string& name)
      : folder_(folder), file_(folder / name), list_(folder / (name + ".blocks")) {}

  [[nodiscard]] const std::filesystem::path& file() const { return file_; }

  // Calls save(file()), then writes the list: `settings` says what else the index was made with.
  template <class Save>
  Status Write(const std::string& settings, std::span<const CoveredBlock> blocks, const Save& save) const {
    std::error_code error;
    std::filesystem::create_directories(folder_, error);
    EVERLONG_RETURN_IF_ERROR(save(file_));
    return WriteList(settings, blocks);
  }

  // What the file covers of a memory with `blocks`, by id; none when nothing was saved, or with other settings. What it
  // lacks is the caller's to add. kCorrupt, kNotFound and kIoError for what is there and cannot be used.
  [[nodiscard]] Result<std::optional<Coverage>> Read(const std::string& settings,
                                                     std::span<const CoveredBlock> blocks) const;

  // kCorrupt unless the file is the one with this checksum. Its writer may put another in its place at any time: asked
  // after the file was read, it says whether that one was read.
  [[nodiscard]] Status CheckIs(uint32_t checksum) const;

  // Whether both files are here, belong together and cover no block but those: nothing of one that was forgotten.
  [[nodiscard]] bool HoldsOnly(std::span<const CoveredBlock> blocks) const;

  // What the list says that the index was made with; empty when there is none to read.
  [[nodiscard]] std::string Settings() const;

  // Both files in another folder, if they are here. What could not be copied is not there either: it is
  // made anew.
  void CopyTo(const std::filesystem::path& folder) const;

  // Both files gone, if they were there, and what a crash left of them.
  void Remove() const;
  // What a crash left of a file that was being written. Nobody writes one now.
  void RemoveUnfinished() const;

 private:
  struct List {
    std::string settings;
    uint32_t checksum = 0;  // of the index
    std::vector<CoveredBlock> blocks;
  };

  Status WriteList(const std::string& settings, std::span<const CoveredBlock> blocks) const;
  // None when nothing was saved.
  [[nodiscard]] Result<std::optional<List>> ReadList() const;

  std::filesystem::path folder_;
  std::filesystem::path file_;
  std::filesystem::path list_;
};

}  // namespace everlong::os
