// Indexes saved in a memory's folder, each with the list of blocks that it covers. An index that fits the catalog is
// loaded and brought up to date. Any other is made anew (docs/format.md, "Index files").
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

// How an index identifies a block. An id is never used twice in a memory; the other fields tell another memory's block.
struct CoveredBlock {
  int64_t id = 0;
  int64_t stream = 0;
  int64_t begin = 0;  // tokens of the stream
  int64_t end = 0;
  int64_t sink_tokens = 0;
  double created_at = 0;
  // CRC-32C of its token ids; for an index of tensors, of these and of the checksum of its tensors. -1 in a list of the
  // first version, which has none.
  int64_t crc = 0;
  [[nodiscard]] bool Is(const CoveredBlock& other) const;
};

// The blocks of a file of a saved index, in its order.
struct Coverage {
  std::vector<CoveredBlock> blocks;
  bool first_version = false;  // of the list: it does not say which token ids its blocks had
  bool gaps = false;           // older blocks of the memory are missing among them
  uint32_t checksum = 0;       // at the end of the file, for SavedIndex::CheckIs
};

// Blocks by their ids, both ends included.
struct BlockIds {
  int64_t first = 1;
  int64_t last = 0;
};

// A saved index is a file, or several: segments, each of the blocks behind those of the one before. The first is
// called NAME, the others NAME.FIRST-LAST by the ids that they are about. A segment never changes; one that covers
// several may take their place. What a crash leaves of these is about ids that the larger one has.
//
// Return the ids of the segments of NAME in a folder, but of the first: by `first`, the larger of two before the other.
std::vector<BlockIds> LaterSegments(const FilePath& folder, std::string_view name);
// Return the name of such a file; NAME itself from the first id on.
std::string SegmentName(std::string_view name, BlockIds ids);

// One file of a saved index, FOLDER/NAME, with its list, so that both are of one time. Older ones have it in
// FOLDER/NAME.blocks.
class SavedIndex {
 public:
  SavedIndex(const FilePath& folder, const std::string& name)
      : folder_(folder), file_(folder / name), list_(folder / (name + ".blocks")) {}

  [[nodiscard]] const FilePath& file() const { return file_; }

  // Replace the file by what save(file) writes and the list, or not at all. `settings`: what else the index is made
  // with.
  template <class Save>
  Status Write(const std::string& settings, std::span<const CoveredBlock> blocks, const Save& save) const {
    EVERLONG_RETURN_IF_ERROR(MakeFolder(folder_));
    const std::vector<std::byte> list = ListBytes(settings, blocks);
    EVERLONG_RETURN_IF_ERROR(save(index::IndexFile(file_, list)));
    return RemoveOlderList();
  }

  // Return what the file covers of `blocks`, by id, which are those of a memory that it may be about; none when nothing
  // was saved, or with other settings.
  // The caller adds what it lacks. kCorrupt, kNotFound and kIoError for files that cannot be used.
  [[nodiscard]] Result<std::optional<Coverage>> Read(const std::string& settings,
                                                     std::span<const CoveredBlock> blocks) const;

  // Return kCorrupt unless the file has this checksum. Its writer may replace it at any time. Call this after reading
  // the file to know whether that file was read.
  [[nodiscard]] Status CheckIs(uint32_t checksum) const;

  // Return whether index and list are here, belong together and cover only those blocks, so nothing that was forgotten.
  [[nodiscard]] bool HoldsOnly(std::span<const CoveredBlock> blocks) const;

  // Return the settings in the list; empty when there is none to read.
  [[nodiscard]] std::string Settings() const;

  // Copy it to another folder, if it is here. What could not be copied is not there, and is made anew.
  void CopyTo(const FilePath& folder) const;

  // Remove it, if it is there, and what a crash left of it.
  void Remove() const;
  // Remove what a crash left of a file that was being written, or of its list. Nobody may be writing one now.
  void RemoveUnfinished() const;

 private:
  struct List {
    std::string settings;
    uint32_t checksum = 0;  // at the end of the index's file
    std::vector<CoveredBlock> blocks;
    bool first_version = false;
  };

  static std::vector<std::byte> ListBytes(const std::string& settings, std::span<const CoveredBlock> blocks);
  // Remove the list in a file of its own, where the index carries its list.
  [[nodiscard]] Status RemoveOlderList() const;
  // Read the list; none when nothing was saved.
  [[nodiscard]] Result<std::optional<List>> ReadList() const;

  FilePath folder_;
  FilePath file_;
  FilePath list_;
};

}  // namespace everlong::os
