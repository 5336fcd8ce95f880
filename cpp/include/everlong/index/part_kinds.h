// The table of the kinds of parts that a memory may have.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "everlong/base/status.h"
#include "everlong/index/index_part.h"
#include "everlong/index/part.h"

namespace everlong::index {

struct PartKind {
  // What requests call it, and its file in a memory's index/ is called.
  std::string_view name;
  // The Query::inputs that it takes; empty: the token ids. A search without it does not ask the part.
  std::string_view input;
  // What a search is told that has this input where the part is not there.
  std::string_view missing;

  enum class Made : uint8_t {
    kWithMemory,    // there from the beginning
    kWhenAsked,     // by the first search that has its input: it costs a read of every page
    kByItsOptions,  // once the caller has said with what
  };
  Made made = Made::kWithMemory;
  bool saved = true;         // to a file, where the memory is in a folder
  bool needs_keys = false;   // there is none in a memory of text alone
  Voice voice;               // of its ranking of pages
  Voice group_voice;         // of its ranking of groups, where it has one
  bool from_caller = false;  // what it holds cannot be had from the store again (Part::AddVectors)

  // An empty one; null where the caller's options make it.
  Result<std::unique_ptr<Part>> (*make)(const PartContext& context) = nullptr;
  // For from_caller: an empty one with the settings of a saved file; null when these are none.
  std::unique_ptr<Part> (*from_settings)(const PartContext& context, const std::string& settings) = nullptr;
};

// The kinds by IndexPart::number.
std::vector<IndexPart> AllIndexParts();
const PartKind& KindOf(IndexPart part);
// Adds a kind that this library does not bring, before the first memory is opened; names are distinct. The kind lives
// as long as the process.
IndexPart RegisterPartKind(const PartKind& kind);

}  // namespace everlong::index
