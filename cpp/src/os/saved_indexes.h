// Indexes kept in a memory's folder, each with the list of blocks that it covers: what fits the catalog is loaded and
// brought up to date, anything else is made anew (docs/format.md, "Index files").
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "everlong/base/file_path.h"
#include "everlong/base/status.h"
#include "everlong/index/index_file.h"

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

// Which blocks a saved index has, in its order.
struct Coverage {
  std::vector<CoveredBlock> blocks;
  bool gaps = false;      // older blocks of the memory are missing among them
  uint32_t checksum = 0;  // that the file ends with, for SavedIndex::CheckIs
};

// One saved index: FOLDER/NAME, which carries its list, so that the two are never of different times. Older ones have
// it in FOLDER/NAME.blocks.
class SavedIndex {
 public:
  SavedIndex(const FilePath& folder, const std::string& name)
      : folder_(folder), file_(folder / name), list_(folder / (name + ".blocks")) {}

  [[nodiscard]] const FilePath& file() const { return file_; }

  // What save(file) writes and the list, in the place of what is there, whole or not at all: `settings` says what else
  // the index was made with.
  template <class Save>
  Status Write(const std::string& settings, std::span<const CoveredBlock> blocks, const Save& save) const {
    EVERLONG_RETURN_IF_ERROR(MakeFolder(folder_));
    EVERLONG_RETURN_IF_ERROR(index::SaveWithAppendix(file_, save, ListBytes(settings, blocks)));
    return RemoveOlderList();
  }

  // What the file covers of a memory with `blocks`, by id; none when nothing was saved, or with other settings. What it
  // lacks is the caller's to add. kCorrupt, kNotFound and kIoError for what is there and cannot be used.
  [[nodiscard]] Result<std::optional<Coverage>> Read(const std::string& settings,
                                                     std::span<const CoveredBlock> blocks) const;

  // kCorrupt unless the file is the one with this checksum. Its writer may put another in its place at any time: asked
  // after the file was read, it says whether that one was read.
  [[nodiscard]] Status CheckIs(uint32_t checksum) const;

  // Whether index and list are here, belong together and cover no block but those: nothing of one that was forgotten.
  [[nodiscard]] bool HoldsOnly(std::span<const CoveredBlock> blocks) const;

  // What the list says that the index was made with; empty when there is none to read.
  [[nodiscard]] std::string Settings() const;

  // The same in another folder, if it is here. What could not be copied is not there either: it is made anew.
  void CopyTo(const FilePath& folder) const;

  // Gone, if it was there, and what a crash left of it.
  void Remove() const;
  // What a crash left of a file that was being written, or was to go with it. Nobody writes one now.
  void RemoveUnfinished() const;

 private:
  struct List {
    std::string settings;
    uint32_t checksum = 0;  // that the index's file ends with
    std::vector<CoveredBlock> blocks;
  };

  static std::vector<std::byte> ListBytes(const std::string& settings, std::span<const CoveredBlock> blocks);
  // The one in a file of its own, where the index carries its list.
  [[nodiscard]] Status RemoveOlderList() const;
  // None when nothing was saved.
  [[nodiscard]] Result<std::optional<List>> ReadList() const;

  FilePath folder_;
  FilePath file_;
  FilePath list_;
};

}  // namespace everlong::os
